//! Which nodes have streams of maps: of this server, and of the others of the network, each of which
//! says which are its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{object::NodeId, presence::StreamId, time::Time};

/// Which nodes have streams.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    here: BTreeMap<NodeId, BTreeSet<StreamId>>,
    elsewhere: BTreeMap<i64, BTreeSet<NodeId>>,
    /// Since when nodes have none that had one.
    gone: HashMap<NodeId, Time>,
    last: u64,
    /// How often it was another set of nodes that have streams here.
    changes: u64,
}

impl Connections {
    /// A stream begins.
    pub fn begin(&mut self, id: NodeId) -> StreamId {
        self.last += 1;
        let stream = StreamId(self.last);
        self.restore(id, stream);
        stream
    }

    /// A stream goes on that was said to have ended.
    pub fn restore(&mut self, id: NodeId, stream: StreamId) {
        let streams = self.here.entry(id).or_default();
        self.changes += u64::from(streams.is_empty());
        streams.insert(stream);
        self.gone.remove(&id);
    }

    /// A stream ended; whether there was such a one.
    pub fn end(&mut self, id: NodeId, stream: StreamId) -> bool {
        let Some(streams) = self.here.get_mut(&id) else { return false };
        let was_there = streams.remove(&stream);
        if streams.is_empty() {
            self.here.remove(&id);
            self.changes += 1;
        }
        was_there
    }

    /// Another server has streams of these nodes; returns which had none there, and which have none
    /// any more.
    pub fn set_server_nodes(
        &mut self,
        server: i64,
        nodes: BTreeSet<NodeId>,
    ) -> (Vec<NodeId>, Vec<NodeId>) {
        let before = match nodes.is_empty() {
            true => self.elsewhere.remove(&server),
            false => self.elsewhere.insert(server, nodes.clone()),
        };
        let before = before.unwrap_or_default();
        let come: Vec<NodeId> = nodes.difference(&before).copied().collect();
        for id in &come {
            self.gone.remove(id);
        }
        (come, before.difference(&nodes).copied().collect())
    }

    /// Whether a node has a stream anywhere.
    pub fn has(&self, id: NodeId) -> bool {
        self.here.contains_key(&id) || self.elsewhere.values().any(|nodes| nodes.contains(&id))
    }

    /// The nodes that have streams here.
    pub fn here(&self) -> impl Iterator<Item = NodeId> {
        self.here.keys().copied()
    }

    /// How often those became others.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A node has no stream any more.
    pub fn mark_gone(&mut self, id: NodeId, since: Time) {
        self.gone.insert(id, since);
    }

    /// Since when a node has no stream that had one.
    pub fn gone_since(&self, id: NodeId) -> Option<Time> {
        self.gone.get(&id).copied()
    }

    /// A node is forgotten. Its streams end by themselves.
    pub fn remove(&mut self, id: NodeId) {
        self.gone.remove(&id);
    }
}
