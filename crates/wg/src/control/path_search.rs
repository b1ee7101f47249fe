//! The search for each peer's path MTU as one of its timers.

use std::sync::Arc;

use packet::Remote;

use crate::{
    device::{Device, OutboundNotice},
    path_mtu::{ProbeKind, constants::MAX_PLPMTU, search::Search, shared::PathEvent},
    peer::Peer,
    time::Time,
};

/// Upper bound of the path MTU search: the interface's MTU, or `None` for no search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchLimit(Option<u16>);

impl SearchLimit {
    pub(super) fn new(mtu: Option<u16>) -> Self {
        Self(mtu.map(|mtu| mtu.min(MAX_PLPMTU)))
    }
}

/// State of one peer's path in the control half. Call order: the methods in any order.
/// [`PathSearch::deadline`] returns the time of the next call of [`PathSearch::handle_timeout`].
pub(crate) struct PathSearch {
    peer: Arc<Peer>,
    /// Present while paths are searched, from the peer's first session on.
    running: Option<Box<ActiveSearch>>,
}

struct ActiveSearch {
    search: Search,
    /// The peer's remote endpoint when the search began.
    remote: Option<Remote>,
}

impl PathSearch {
    pub(super) fn new(peer: Arc<Peer>) -> Self {
        Self { peer, running: None }
    }

    /// Sets the upper bound of the search. Returns whether the deadline may have changed.
    pub(super) fn handle_search_limit(
        &mut self,
        search_limit: SearchLimit,
        device: &Device,
        now: Time,
    ) -> bool {
        match (search_limit.0, &mut self.running) {
            (Some(mtu), Some(running)) => running.search.handle_change(mtu, now),
            (Some(_), None) => return false,
            (None, running) => *running = None,
        }
        self.publish(device);
        true
    }

    /// Handles a new session with the peer.
    pub(super) fn handle_session(&mut self, search_limit: SearchLimit, device: &Device, now: Time) {
        let Some(mtu) = search_limit.0 else { return };
        self.search(mtu).handle_session();
        self.check_endpoint(mtu, now);
        self.publish(device);
    }

    /// Handles the probes and replies that the data path received.
    pub(super) fn handle_probes(&mut self, search_limit: SearchLimit, device: &Device, now: Time) {
        let events = self.peer.path.take_events();
        let Some(mtu) = search_limit.0 else { return };
        let search = self.search(mtu);
        for event in events {
            match event {
                PathEvent::Received(probe, _) if probe.kind == ProbeKind::Request => {
                    search.handle_probe_request(now);
                }
                PathEvent::Received(probe, at) => search.handle_reply(probe.token, at),
                PathEvent::Refused(token) => search.handle_refusal(token, now),
            }
        }
        self.publish(device);
    }

    /// Handles timers that are due.
    pub(super) fn handle_timeout(&mut self, search_limit: SearchLimit, device: &Device, now: Time) {
        let Some(mtu) = search_limit.0 else { return };
        let long = self.peer.path.take_long_data(now);
        self.check_endpoint(mtu, now);
        let Some(running) = &mut self.running else { return };
        running.search.handle_timeout(now);
        if long {
            running.search.handle_long_data(now);
        }
        self.publish(device);
    }

    /// Returns the time of the next action.
    pub(super) fn deadline(&self) -> Option<Time> {
        let search = self.running.as_ref().and_then(|running| running.search.poll_timeout());
        [self.peer.path.long_deadline(), search].into_iter().flatten().min()
    }

    /// Returns the longest inner packet that is known to arrive whole.
    pub(super) fn found(&self) -> Option<u16> {
        self.running.as_ref().and_then(|running| running.search.found())
    }

    /// Ends the search, because the interface went down.
    pub(super) fn reset(&mut self) {
        self.running = None;
        self.peer.path.set_limit(None);
        self.peer.path.set_long_data_wanted(false);
    }

    fn search(&mut self, mtu: u16) -> &mut Search {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        let start = || Box::new(ActiveSearch { search: Search::new(mtu), remote });
        &mut self.running.get_or_insert_with(start).search
    }

    fn check_endpoint(&mut self, mtu: u16, now: Time) {
        let remote = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if let Some(running) = &mut self.running
            && running.remote != remote
        {
            running.remote = remote;
            running.search.handle_change(mtu, now);
        }
    }

    /// Publishes the limit to the data path, and queues probes.
    fn publish(&mut self, device: &Device) {
        let path = &self.peer.path;
        let Some(search) = self.running.as_mut().map(|running| &mut running.search) else {
            path.set_limit(None);
            path.set_long_data_wanted(false);
            return;
        };
        let mut any = false;
        while let Some(probe) = search.poll_probe() {
            any = true;
            path.queue_probe(probe);
        }
        path.set_limit(search.limit());
        path.set_long_data_wanted(search.needs_long_data());
        if any {
            device.outbound_mailbox.post(&self.peer, OutboundNotice::Probe);
        }
    }
}
