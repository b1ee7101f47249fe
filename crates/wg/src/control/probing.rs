//! The search for each peer's path MTU ([`crate::path_mtu`]) as one of its timers.

use std::net::SocketAddr;

use rand_core::CryptoRng;

use super::{Control, entry::Entry};
use crate::{
    PublicKey,
    constants::PROBE_MOST,
    device::{Device, OutboundNotice},
    path_mtu::PathMtu,
    peer::Heard,
    probe::ProbeKind,
    time::Time,
};

/// The search for one peer, and where the peer was when it began.
pub(super) struct Probing {
    search: PathMtu,
    remote: Option<SocketAddr>,
}

impl<R: CryptoRng> Control<R> {
    /// Searches for the path MTU of each peer that answers, up to the interface's `mtu`,
    /// from its next session on; or, with `None`, of no peer any more.
    pub fn probe_paths(&mut self, mtu: Option<u16>, now: Time) {
        let mtu = mtu.map(|mtu| mtu.min(PROBE_MOST));
        self.probing = mtu;
        let names: Vec<PublicKey> = self.peers.keys().copied().collect();
        for name in names {
            let Some(entry) = self.peers.get_mut(&name) else { continue };
            match (mtu, &mut entry.probing) {
                (Some(mtu), Some(probing)) => probing.search.handle_change(mtu, now),
                (Some(_), None) => continue,
                (None, probing) => *probing = None,
            }
            entry.show_path(&self.device);
            self.plan(&name, now);
        }
    }

    /// There is a session with the peer.
    pub(super) fn begin_probing(&mut self, name: &PublicKey, now: Time) {
        let Some(mtu) = self.probing else { return };
        let Some(entry) = self.peers.get_mut(name) else { return };
        entry.probing(mtu).handle_session();
        entry.notice_move(mtu, now);
        entry.show_path(&self.device);
    }

    pub(super) fn handle_probes(&mut self, name: &PublicKey, now: Time) {
        let Some(entry) = self.peers.get_mut(name) else { return };
        let heard = entry.peer.path.take_heard();
        let Some(mtu) = self.probing else { return };
        let search = entry.probing(mtu);
        for heard in heard {
            match heard {
                Heard::Came(probe, _) if probe.kind == ProbeKind::Question => {
                    search.handle_question(now);
                }
                Heard::Came(probe, at) => search.handle_answer(probe.token, at),
                Heard::Refused(token) => search.handle_refusal(token, now),
            }
        }
        entry.show_path(&self.device);
    }

    pub(super) fn handle_probing_timeout(&mut self, name: &PublicKey, now: Time) {
        let Some(mtu) = self.probing else { return };
        let Some(entry) = self.peers.get_mut(name) else { return };
        let long = entry.peer.activity.take_long(now);
        entry.notice_move(mtu, now);
        let Some(probing) = &mut entry.probing else { return };
        probing.search.handle_timeout(now);
        if long {
            probing.search.handle_long_data(now);
        }
        entry.show_path(&self.device);
    }
}

impl Entry {
    fn probing(&mut self, mtu: u16) -> &mut PathMtu {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        let begin = || Box::new(Probing { search: PathMtu::new(mtu), remote });
        &mut self.probing.get_or_insert_with(begin).search
    }

    fn notice_move(&mut self, mtu: u16, now: Time) {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if let Some(probing) = &mut self.probing
            && probing.remote != remote
        {
            probing.remote = remote;
            probing.search.handle_change(mtu, now);
        }
    }

    /// Lets the data path see what was found, and has questions sent.
    fn show_path(&mut self, device: &Device) {
        let path = &self.peer.path;
        let Some(search) = self.probing.as_mut().map(|probing| &mut probing.search) else {
            path.set_limit(None);
            self.peer.activity.want_long(false);
            return;
        };
        let mut any = false;
        while let Some(question) = search.poll_question() {
            any = true;
            path.send(question);
        }
        path.set_limit(search.limit());
        self.peer.activity.want_long(search.wants_long_data());
        if any {
            device.for_outbound.post(&self.peer, OutboundNotice::Probe);
        }
    }

    /// When the search is to go on.
    pub(super) fn probing_deadline(&self) -> Option<Time> {
        self.probing.as_ref().and_then(|probing| probing.search.poll_timeout())
    }

    /// The longest inner packet that was seen to arrive whole.
    pub(super) fn path_mtu(&self) -> Option<u16> {
        self.probing.as_ref().and_then(|probing| probing.search.found())
    }
}
