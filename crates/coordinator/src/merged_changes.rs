//! The changes between two positions of the log, merged by node. They are computed once for all streams that read
//! the same range.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    change_log::{Change, Log, Parts},
    object::NodeId,
};

/// The number of cached ranges. At any time, streams read the same few.
const MAX_CACHED: usize = 8;

/// The merged changes of a range of the log.
#[derive(Debug, Default)]
pub(crate) struct MergedChanges {
    nodes: Vec<(NodeId, u32, Parts)>,
    /// Whether the policy changed.
    pub has_policy: bool,
    /// Whether the state of tailnet lock changed.
    pub has_tka: bool,
}

impl MergedChanges {
    fn of(changes: impl Iterator<Item = Change>) -> Self {
        // If the database lost a deletion, the node is removed at one index and present at another.
        let mut nodes: BTreeMap<(NodeId, u32), Parts> = BTreeMap::new();
        let (mut has_policy, mut has_tka) = (false, false);
        for change in changes {
            match change {
                Change::Node { id, index, parts } => {
                    let of = nodes.entry((id, index)).or_default();
                    *of = of.and(parts);
                }
                Change::Policy => has_policy = true,
                Change::Tka => has_tka = true,
                // Each session compares the relays with those that it sent.
                Change::Relays => {}
            }
        }
        let nodes = nodes.into_iter().map(|((id, index), parts)| (id, index, parts)).collect();
        Self { nodes, has_policy, has_tka }
    }

    /// The nodes in order, with their indexes and changed parts.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, u32, Parts)> + '_ {
        self.nodes.iter().copied()
    }

    /// The changed parts of a node.
    pub(crate) fn parts(&self, id: NodeId) -> Parts {
        let begin = self.nodes.partition_point(|(other, ..)| *other < id);
        let its = self.nodes[begin..].iter().take_while(|(other, ..)| *other == id);
        its.fold(Parts::empty(), |all, (.., parts)| all.and(*parts))
    }
}

/// A cache of the last ranges.
#[derive(Debug, Default)]
pub(crate) struct MergedCache(Mutex<VecDeque<(Range, Arc<MergedChanges>)>>);

/// Begin and end of a range of the log.
type Range = (u64, u64);

impl MergedCache {
    /// The changes from `number` up to `end`. `None` if the log has forgotten some of them.
    pub(crate) fn between(&self, log: &Log, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        let cached = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            cached().iter().find(|(of, _)| *of == (number, end)).map(|(_, merged)| merged.clone());
        if found.is_some() {
            return found;
        }
        let merged = Arc::new(MergedChanges::of(log.between(number, end)?));
        let mut cached = cached();
        cached.truncate(MAX_CACHED - 1);
        cached.push_front(((number, end), Arc::clone(&merged)));
        Some(merged)
    }
}
