//! The nodes with streams of maps: at this server, and at other servers of the network, which report theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{object::NodeId, time::Time};

/// The number of a stream of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u64);

/// The nodes with streams.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    here: BTreeMap<NodeId, BTreeSet<StreamId>>,
    elsewhere: BTreeMap<i64, BTreeSet<NodeId>>,
    /// The time at which nodes lost their last stream.
    disconnected: HashMap<NodeId, Time>,
    /// The time of the start: no node was connected before.
    started: Time,
    last: u64,
    /// The number of changes of the set of nodes with streams here.
    changes: u64,
}

impl Connections {
    /// Returns an empty table of a server that starts at this time.
    pub(crate) fn starting_at(started: Time) -> Self {
        Self { started, ..Self::default() }
    }

    /// Adds a stream.
    pub(crate) fn begin(&mut self, id: NodeId) -> StreamId {
        self.last += 1;
        let stream = StreamId(self.last);
        self.restore(id, stream);
        stream
    }

    /// Adds a stream again, after its end was undone.
    pub(crate) fn restore(&mut self, id: NodeId, stream: StreamId) {
        let streams = self.here.entry(id).or_default();
        self.changes += u64::from(streams.is_empty());
        streams.insert(stream);
        self.disconnected.remove(&id);
    }

    /// Removes a stream. Returns whether it existed.
    pub(crate) fn end(&mut self, id: NodeId, stream: StreamId) -> bool {
        let Some(streams) = self.here.get_mut(&id) else { return false };
        let was_there = streams.remove(&stream);
        if streams.is_empty() {
            self.here.remove(&id);
            self.changes += 1;
        }
        was_there
    }

    /// Sets the nodes with streams at another server. Returns the new ones and the removed ones.
    pub(crate) fn set_server_nodes(
        &mut self,
        server: i64,
        nodes: BTreeSet<NodeId>,
    ) -> (Vec<NodeId>, Vec<NodeId>) {
        let before = match nodes.is_empty() {
            true => self.elsewhere.remove(&server),
            false => self.elsewhere.insert(server, nodes.clone()),
        };
        let before = before.unwrap_or_default();
        let added: Vec<NodeId> = nodes.difference(&before).copied().collect();
        for id in &added {
            self.disconnected.remove(id);
        }
        (added, before.difference(&nodes).copied().collect())
    }

    /// Whether a node has a stream at any server.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.here.contains_key(&id) || self.elsewhere.values().any(|nodes| nodes.contains(&id))
    }

    /// The nodes with streams here.
    pub(crate) fn here(&self) -> impl Iterator<Item = NodeId> {
        self.here.keys().copied()
    }

    /// The number of changes of these nodes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Records that a node lost its last stream.
    pub(crate) fn mark_disconnected(&mut self, id: NodeId, since: Time) {
        self.disconnected.insert(id, since);
    }

    /// The time at which a node lost its last stream.
    pub(crate) fn disconnected_since(&self, id: NodeId) -> Option<Time> {
        self.disconnected.get(&id).copied()
    }

    /// The time since which a node without streams is known to be disconnected. Its last stream may have been at
    /// another server, and its end was not reported here.
    pub(crate) fn absent_since(&self, id: NodeId) -> Time {
        self.disconnected_since(id).unwrap_or_default().max(self.started)
    }

    /// Removes a deleted node. Its streams end by themselves.
    pub(crate) fn remove(&mut self, id: NodeId) {
        self.disconnected.remove(&id);
    }
}
