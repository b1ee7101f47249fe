//! The previous values of everything that is not published.

use std::collections::BTreeMap;

use crate::{
    connections::StreamId,
    object::{Kind, Node, NodeId},
    pending::PendingRegistrations,
    ssh_checks::SshDecision,
    stored_object::StoredObject,
};

/// Previous values of unpublished changes.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    pub objects: BTreeMap<(Kind, i64), StoredObject>,
    /// Indexes of the saved nodes.
    pub indexes: BTreeMap<NodeId, u32>,
    pub numbers: Option<BTreeMap<Kind, i64>>,
    pub pending: Option<PendingRegistrations>,
    /// Streams that began (`true`) or ended.
    pub streams: Vec<(NodeId, StreamId, bool)>,
    pub ssh: Vec<SshDecision>,
}

impl Undo {
    /// Saves a node and its index.
    pub(crate) fn save_node(&mut self, before: &Node, index: u32) {
        let id = before.id;
        self.objects.entry((Kind::Node, id.0)).or_insert_with(|| {
            self.indexes.insert(id, index);
            StoredObject::Node(id, Some(Box::new(before.clone())))
        });
    }
}
