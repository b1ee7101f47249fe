//! The search for each peer's path MTU as one of its timers.

use std::sync::Arc;

use packet::Remote;

use super::{constants::PROBE_MOST, probe::ProbeKind, search::Search, shared::Heard};
use crate::{
    device::{Device, OutboundNotice},
    peer::Peer,
    time::Time,
};

/// How far paths are searched: up to the interface's MTU, or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reach(Option<u16>);

impl Reach {
    pub fn new(mtu: Option<u16>) -> Self {
        Self(mtu.map(|mtu| mtu.min(PROBE_MOST)))
    }
}

/// What the control half keeps of one peer's path. Call order: the verbs in any order;
/// [`PathSearch::deadline`] says when to call [`PathSearch::handle_timeout`].
pub(crate) struct PathSearch {
    peer: Arc<Peer>,
    /// Only while paths are searched, and from the peer's first session on.
    running: Option<Box<Running>>,
}

struct Running {
    search: Search,
    /// Where the peer was when it began.
    remote: Option<Remote>,
}

impl PathSearch {
    pub fn new(peer: Arc<Peer>) -> Self {
        Self { peer, running: None }
    }

    /// Paths are searched as far as `reach` says from now on; whether there may be another
    /// deadline.
    pub fn handle_reach(&mut self, reach: Reach, device: &Device, now: Time) -> bool {
        match (reach.0, &mut self.running) {
            (Some(mtu), Some(running)) => running.search.handle_change(mtu, now),
            (Some(_), None) => return false,
            (None, running) => *running = None,
        }
        self.show(device);
        true
    }

    /// There is a session with the peer.
    pub fn handle_session(&mut self, reach: Reach, device: &Device, now: Time) {
        let Some(mtu) = reach.0 else { return };
        self.search(mtu).handle_session();
        self.notice_move(mtu, now);
        self.show(device);
    }

    /// Reads what the data path was told by the peer.
    pub fn handle_probes(&mut self, reach: Reach, device: &Device, now: Time) {
        let heard = self.peer.path.take_heard();
        let Some(mtu) = reach.0 else { return };
        let search = self.search(mtu);
        for heard in heard {
            match heard {
                Heard::Came(probe, _) if probe.kind == ProbeKind::Question => {
                    search.handle_question(now);
                }
                Heard::Came(probe, at) => search.handle_answer(probe.token, at),
                Heard::Refused(token) => search.handle_refusal(token, now),
            }
        }
        self.show(device);
    }

    /// Works on what is due.
    pub fn handle_timeout(&mut self, reach: Reach, device: &Device, now: Time) {
        let Some(mtu) = reach.0 else { return };
        let long = self.peer.path.take_long(now);
        self.notice_move(mtu, now);
        let Some(running) = &mut self.running else { return };
        running.search.handle_timeout(now);
        if long {
            running.search.handle_long_data(now);
        }
        self.show(device);
    }

    /// When there is something to do next.
    pub fn deadline(&self) -> Option<Time> {
        let search = self.running.as_ref().and_then(|running| running.search.poll_timeout());
        [self.peer.path.long_deadline(), search].into_iter().flatten().min()
    }

    /// The longest inner packet that was seen to arrive whole.
    pub fn found(&self) -> Option<u16> {
        self.running.as_ref().and_then(|running| running.search.found())
    }

    /// Forgets everything: the interface went down.
    pub fn reset(&mut self) {
        self.running = None;
        self.peer.path.set_limit(None);
        self.peer.path.want_long(false);
    }

    fn search(&mut self, mtu: u16) -> &mut Search {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        let begin = || Box::new(Running { search: Search::new(mtu), remote });
        &mut self.running.get_or_insert_with(begin).search
    }

    fn notice_move(&mut self, mtu: u16, now: Time) {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if let Some(running) = &mut self.running
            && running.remote != remote
        {
            running.remote = remote;
            running.search.handle_change(mtu, now);
        }
    }

    /// Lets the data path see what was found, and has questions sent.
    fn show(&mut self, device: &Device) {
        let path = &self.peer.path;
        let Some(search) = self.running.as_mut().map(|running| &mut running.search) else {
            path.set_limit(None);
            path.want_long(false);
            return;
        };
        let mut any = false;
        while let Some(question) = search.poll_question() {
            any = true;
            path.send(question);
        }
        path.set_limit(search.limit());
        path.want_long(search.wants_long_data());
        if any {
            device.outbound_mailbox.post(&self.peer, OutboundNotice::Probe);
        }
    }
}
