//! The journal of the state: the numbers of objects, the objects to store, the changes to publish, and undo.
//!
//! ```text
//!   a command ──► save    previous values ──► roll_back, if the objects cannot be stored
//!            ├──► write   objects         ──► take_writes
//!            └──► note    changes         ──► publish ──► the log, which streams read
//! ```

mod undo;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

pub(crate) use self::undo::Undo;
use crate::{
    change_log::{Change, Log, Parts},
    connections::StreamId,
    merged_changes::{MergedCache, MergedChanges},
    object::{Kind, Node, NodeId, Object, Stored},
    pending::PendingRegistrations,
    ssh_checks::SshDecision,
    stored_object::StoredObject,
    time::Time,
};

/// The numbers, writes and changes of a network.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The last number of each kind.
    last: BTreeMap<Kind, i64>,
    writes: BTreeMap<(Kind, i64), Stored>,
    unpublished: Vec<Change>,
    log: Log,
    merged_cache: MergedCache,
    undo: Undo,
}

impl Journal {
    /// Returns a journal without changes.
    pub(crate) fn new(log: Log) -> Self {
        Self {
            last: BTreeMap::new(),
            writes: BTreeMap::new(),
            unpublished: Vec::new(),
            log,
            merged_cache: MergedCache::default(),
            undo: Undo::default(),
        }
    }

    /// Allocates a number that no object of this kind ever had.
    pub(crate) fn next_number(&mut self, kind: Kind) -> i64 {
        self.undo.numbers.get_or_insert_with(|| self.last.clone());
        let last = self.last.entry(kind).or_default();
        *last += 1;
        *last
    }

    /// The last number that an object of this kind had.
    pub(crate) fn last_number(&self, kind: Kind) -> i64 {
        self.last.get(&kind).copied().unwrap_or_default()
    }

    /// Records that a stored object has this number.
    pub(crate) fn note_number(&mut self, kind: Kind, id: i64) {
        let last = self.last.entry(kind).or_default();
        *last = id.max(*last);
    }

    /// Whether an object has an unpublished change, so that its previous value is saved.
    pub(crate) fn has_saved(&self, kind: Kind, id: i64) -> bool {
        self.undo.objects.contains_key(&(kind, id))
    }

    /// Saves the previous value of an object.
    pub(crate) fn save(&mut self, kind: Kind, id: i64, before: StoredObject) {
        self.undo.objects.insert((kind, id), before);
    }

    /// Saves the previous value of a node, and its index.
    pub(crate) fn save_node(&mut self, before: &Node, index: u32) {
        self.undo.save_node(before, index);
    }

    /// Saves a stream that began (`true`) or ended.
    pub(crate) fn save_stream(&mut self, id: NodeId, stream: StreamId, began: bool) {
        self.undo.streams.push((id, stream, began));
    }

    /// Saves a decision on a login.
    pub(crate) fn save_ssh_decision(&mut self, decision: SshDecision) {
        self.undo.ssh.push(decision);
    }

    /// Saves the pending registrations before their first change.
    pub(crate) fn save_pending(&mut self, pending: &PendingRegistrations) {
        self.undo.pending.get_or_insert_with(|| pending.clone());
    }

    /// Queues a changed object for the store.
    pub(crate) fn write(&mut self, object: &impl Object) {
        let stored = object.stored();
        self.writes.insert((stored.kind, stored.id), stored);
    }

    /// Queues the removal of an object for the store.
    pub(crate) fn write_removal(&mut self, kind: Kind, id: i64) {
        self.writes.insert((kind, id), Stored { kind, id, body: None });
    }

    /// Takes the objects that must be stored before the changes are published.
    pub(crate) fn take_writes(&mut self) -> Vec<Stored> {
        mem::take(&mut self.writes).into_values().collect()
    }

    /// Queues a change for the log.
    pub(crate) fn note(&mut self, change: Change) {
        self.unpublished.push(change);
    }

    /// Moves the changes to the log, after they were stored with this version of the network. Returns whether there
    /// were any, and the indexes of removed nodes that no entry of the log refers to anymore.
    pub(crate) fn publish(&mut self, version: i64, now: Time) -> (bool, Vec<u32>) {
        self.undo = Undo::default();
        self.log.begin(version, now);
        let changes = mem::take(&mut self.unpublished);
        let any = !changes.is_empty();
        let forgotten = changes.into_iter().filter_map(|change| self.log.push(change));
        (any, forgotten.filter_map(removed_index).collect())
    }

    /// Forgets all unpublished changes, after a load.
    pub(crate) fn clear(&mut self) {
        self.unpublished.clear();
        self.writes.clear();
        self.undo = Undo::default();
    }

    /// Takes the previous values of all unpublished changes, and drops the writes.
    pub(crate) fn roll_back(&mut self) -> Undo {
        let mut undo = mem::take(&mut self.undo);
        self.writes.clear();
        if let Some(numbers) = undo.numbers.take() {
            self.last = numbers;
        }
        // A restored node must not be published as removed.
        self.unpublished.retain(|change| match change {
            Change::Node { id, parts, .. } => {
                !undo.indexes.contains_key(id) || !parts.has(Parts::REMOVED)
            }
            Change::Policy | Change::Tka | Change::Relays => true,
        });
        undo
    }

    /// Drops the changes of nodes that were never published. Returns the indexes of those that were removed.
    pub(crate) fn drop_changes_of(&mut self, nodes: &BTreeSet<NodeId>) -> Vec<u32> {
        let is_theirs =
            |change: &Change| matches!(change, Change::Node { id, .. } if nodes.contains(id));
        let (dropped, others): (Vec<_>, _) =
            mem::take(&mut self.unpublished).into_iter().partition(is_theirs);
        self.unpublished = others;
        dropped.into_iter().filter_map(removed_index).collect()
    }

    /// The published changes.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Sets the epoch of a new log.
    pub(crate) fn set_epoch(&mut self, epoch: i64) {
        self.log = mem::take(&mut self.log).with_epoch(epoch);
    }

    /// Begins an epoch. Positions of another epoch become invalid.
    pub(crate) fn begin_epoch(&mut self, epoch: i64) {
        self.log.begin_epoch(epoch);
    }

    /// The changes in a range of the log. `None` if the log has forgotten some of them.
    pub(crate) fn merged_changes(&self, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        self.merged_cache.between(&self.log, number, end)
    }
}

/// The index of the node that a change removed.
fn removed_index(change: Change) -> Option<u32> {
    match change {
        Change::Node { index, parts, .. } if parts.has(Parts::REMOVED) => Some(index),
        _ => None,
    }
}
