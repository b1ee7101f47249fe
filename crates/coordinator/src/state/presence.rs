//! Connections of nodes, and timeouts: nodes go offline, ephemeral nodes are deleted, keys expire.

use std::{collections::BTreeSet, time::Duration};

use super::State;
use crate::{change_log::Parts, connections::StreamId, object::NodeId, time::Time, timers::Timer};

/// The minimum time after which an ephemeral node is deleted that was never connected: it may still connect.
const FIRST_CONNECTION: Duration = Duration::from_secs(5 * 60);

/// The age at which the stored last-seen time of a connected node is renewed. A killed server cannot store it.
const MAX_LAST_SEEN_AGE: Duration = Duration::from_secs(10 * 60);
/// The delay from a connection to the first such write. The connection itself writes nothing, so clients can
/// connect while the store is read-only.
const SOON: Duration = Duration::from_secs(1);
/// The interval between later writes.
const LOOK: Duration = Duration::from_secs(30);
/// The maximum number of nodes in one write.
const MAX_BATCH: usize = 1000;

impl State {
    /// Adds a stream of a node. Returns its number for [`State::disconnect`].
    pub fn connect(&mut self, id: NodeId, now: Time) -> StreamId {
        let stream = self.connections.begin(id);
        self.journal.save_stream(id, stream, true);
        let wait = if self.has_stale_last_seen(id, now) { SOON } else { LOOK };
        self.timers.set_at_latest(Timer::Seen, now.after(wait));
        if self.mark_responding(id) {
            self.choose_primaries_of(id);
        }
        self.go_online(id);
        stream
    }

    /// Removes a stream of a node.
    pub fn disconnect(&mut self, id: NodeId, stream: StreamId, now: Time) {
        if !self.connections.end(id, stream) {
            return;
        }
        self.journal.save_stream(id, stream, false);
        if self.connections.has(id) || !self.nodes.contains(id) {
            return;
        }
        self.record_seen(id, now);
        self.handle_disconnect(id, now);
    }

    /// Stores the present time as last-seen time of all connected nodes, before the server stops.
    pub fn record_all_seen(&mut self, now: Time) {
        for id in self.connections.here().collect::<Vec<_>>() {
            self.record_seen(id, now);
        }
    }

    /// Renews the stored last-seen times of connected nodes.
    fn refresh_last_seen(&mut self, now: Time) {
        let here = self.connections.here().filter(|id| self.has_stale_last_seen(*id, now));
        let due: Vec<NodeId> = here.take(MAX_BATCH).collect();
        for id in &due {
            self.record_seen(*id, now);
        }
        if self.connections.here().next().is_some() {
            let wait = if due.len() == MAX_BATCH { SOON } else { LOOK };
            self.timers.set(Timer::Seen, now.after(wait));
        }
    }

    fn has_stale_last_seen(&self, id: NodeId, now: Time) -> bool {
        self.nodes.get(id).is_some_and(|entry| {
            entry.node.last_seen.is_none_or(|at| now.since(at) >= MAX_LAST_SEEN_AGE)
        })
    }

    fn record_seen(&mut self, id: NodeId, now: Time) {
        self.change_node(id, now, |node| {
            node.last_seen = Some(now);
            Parts::empty()
        });
    }

    /// Sets the nodes with streams at another server of the network.
    pub fn set_server_connections(&mut self, server: i64, nodes: BTreeSet<NodeId>, now: Time) {
        let (added, removed) = self.connections.set_server_nodes(server, nodes);
        for id in added {
            self.mark_responding(id);
            self.go_online(id);
        }
        for id in removed {
            self.handle_disconnect(id, now);
        }
    }

    /// Removes the streams of another server, which sent nothing since then.
    pub fn expire_server_connections(&mut self, server: i64, since: Time) {
        let (_, removed) = self.connections.set_server_nodes(server, BTreeSet::new());
        for id in removed {
            self.handle_disconnect(id, since);
        }
    }

    /// The nodes with streams at this server.
    pub fn connected_here(&self) -> impl Iterator<Item = NodeId> {
        self.connections.here()
    }

    /// The number of changes of these nodes.
    pub fn connection_changes(&self) -> u64 {
        self.connections.changes()
    }

    pub(super) fn handle_disconnect(&mut self, id: NodeId, since: Time) {
        if self.connections.has(id) || !self.nodes.contains(id) {
            return;
        }
        self.connections.mark_disconnected(id, since);
        self.timers.set(Timer::Offline(id), since.after(self.settings.offline_after));
        self.set_ephemeral_timer(id);
    }

    /// Marks a node as responding, because it started a stream. Returns whether it did not respond before.
    fn mark_responding(&mut self, id: NodeId) -> bool {
        self.nodes.set_responds(id, true) == Some(false)
    }

    fn go_online(&mut self, id: NodeId) {
        if self.mark_online(id) {
            self.choose_primaries_of(id);
        }
    }

    /// Marks a node as online. Returns whether it was offline. Does not choose primary routers.
    pub(super) fn mark_online(&mut self, id: NodeId) -> bool {
        let is_other = self.nodes.set_online(id, true) == Some(false);
        if is_other {
            self.note_parts(id, Parts::ONLINE);
        }
        is_other
    }

    /// The time of the next call of [`State::handle_timeout`].
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Handles all due timers.
    pub fn handle_timeout(&mut self, now: Time) {
        let networks = self.nodes.take_required_choices();
        self.choose_primaries_for(networks);
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Offline(id) => self.go_offline(id, now),
                Timer::Ephemeral(id) => self.remove_ephemeral(id, now),
                Timer::Expiry(id) => self.handle_expiry(id, now),
                Timer::Endpoints(id) => self.clear_endpoints(id, now),
                Timer::Registration(number) => {
                    self.pending.remove(&number);
                }
                Timer::Seen => self.refresh_last_seen(now),
            }
        }
    }

    /// Sets the timers of a node for its expiry and, if it is ephemeral, its deletion.
    pub(super) fn set_timers(&mut self, id: NodeId, now: Time) {
        let Some(entry) = self.nodes.get(id) else { return };
        if let Some(at) = entry.node.expires.filter(|at| *at > now) {
            self.timers.set(Timer::Expiry(id), at);
        }
        self.set_ephemeral_timer(id);
    }

    fn set_ephemeral_timer(&mut self, id: NodeId) {
        if let Some(at) = self.ephemeral_removal_time(id) {
            self.timers.set(Timer::Ephemeral(id), at);
        }
    }

    /// The time at which an ephemeral node without a stream is deleted.
    fn ephemeral_removal_time(&self, id: NodeId) -> Option<Time> {
        let entry = self.nodes.get(id).filter(|entry| entry.node.ephemeral)?;
        let patience = self.settings.ephemeral_after;
        let disconnected = self.connections.absent_since(id);
        (!self.connections.has(id)).then(|| match entry.node.last_seen {
            Some(seen) => seen.max(disconnected).after(patience),
            None => entry.node.created.max(disconnected).after(patience.max(FIRST_CONNECTION)),
        })
    }

    fn go_offline(&mut self, id: NodeId, now: Time) {
        let is_connected = self.connections.has(id);
        // The node may have reconnected in between, and disconnected again.
        let disconnected_for =
            self.connections.disconnected_since(id).map_or(Duration::MAX, |at| now.since(at));
        let is_online = self.nodes.get(id).is_some_and(|entry| entry.online);
        if !is_connected && is_online && disconnected_for >= self.settings.offline_after {
            self.nodes.set_online(id, false);
            self.choose_primaries_of(id);
            self.note_parts(id, Parts::ONLINE);
        }
    }

    fn remove_ephemeral(&mut self, id: NodeId, now: Time) {
        match self.ephemeral_removal_time(id) {
            Some(at) if at <= now => self.remove_node(id),
            Some(at) => self.timers.set(Timer::Ephemeral(id), at),
            None => {}
        }
    }

    fn handle_expiry(&mut self, id: NodeId, now: Time) {
        if self.nodes.get(id).is_some_and(|entry| entry.node.has_expired(now)) {
            self.note_parts(id, Parts::KEY);
        }
    }
}
