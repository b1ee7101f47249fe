//! What changed between two places of the log, each node once: put together once for all
//! streams that read on from the one to the other.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    log::{Change, Log, Parts},
    object::NodeId,
};

/// Stretches of the log that are kept: streams read the same ones at a time.
const KEPT: usize = 8;

/// A stretch of the log.
#[derive(Debug, Default)]
pub(crate) struct MergedChanges {
    nodes: Vec<(NodeId, u32, Parts)>,
    /// Whether anybody may reach others than before.
    pub has_policy: bool,
    /// Whether another thing is said of tailnet lock.
    pub has_tka: bool,
}

impl MergedChanges {
    fn of(changes: impl Iterator<Item = Change>) -> Self {
        // If the database has lost a deletion, the node is gone at one place and there at another.
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
                // Each client is told by what it was told before.
                Change::Relays => {}
            }
        }
        let nodes = nodes.into_iter().map(|((id, index), parts)| (id, index, parts)).collect();
        Self { nodes, has_policy, has_tka }
    }

    /// The nodes in order, their places, and all that changed of each.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, u32, Parts)> + '_ {
        self.nodes.iter().copied()
    }

    /// What changed of a node.
    pub fn parts(&self, id: NodeId) -> Parts {
        let begin = self.nodes.partition_point(|(other, ..)| *other < id);
        let its = self.nodes[begin..].iter().take_while(|(other, ..)| *other == id);
        its.fold(Parts::none(), |all, (.., parts)| all.and(*parts))
    }
}

/// The last stretches that were asked for.
#[derive(Debug, Default)]
pub(crate) struct MergedCache(Mutex<VecDeque<(Stretch, Arc<MergedChanges>)>>);

/// Of the log: from where to where.
type Stretch = (u64, u64);

impl MergedCache {
    /// What changed from this number on, and before that one. `None`: some of it is forgotten.
    pub fn between(&self, log: &Log, number: u64, end: u64) -> Option<Arc<MergedChanges>> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            kept().iter().find(|(of, _)| *of == (number, end)).map(|(_, merged)| merged.clone());
        if found.is_some() {
            return found;
        }
        let merged = Arc::new(MergedChanges::of(log.between(number, end)?));
        let mut kept = kept();
        kept.truncate(KEPT - 1);
        kept.push_front(((number, end), Arc::clone(&merged)));
        Some(merged)
    }
}
