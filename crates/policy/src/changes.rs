//! The effects of a change of some nodes: compares two compilations of one policy.

use std::cmp::Ordering;

use crate::{
    compile::{Compiled, Edge, EdgeKind, Target},
    nodes::Nodes,
    resolve::Resolved,
    set::NodeSet,
    ssh::SshEdge,
};

/// Nodes for which something may have changed. Nothing changed for all other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedNodes {
    /// Nodes with another filter.
    pub filters: NodeSet,
    /// Nodes that reach, or are reached by, other nodes than before.
    pub reach: NodeSet,
    /// Nodes with other SSH rules.
    pub ssh: NodeSet,
    /// Nodes with other attributes.
    pub attributes: NodeSet,
}

impl Compiled {
    /// Returns the differences from an earlier compilation of the same policy. `changed` are the nodes
    /// that changed in between.
    pub fn changes_since(&self, before: &Self, changed: &NodeSet) -> ChangedNodes {
        let mut changes = ChangedNodes { filters: changed.clone(), ..ChangedNodes::default() };
        let context = Context { nodes: &self.nodes, changed };
        for pair in pairs(&before.edges, &self.edges) {
            let (old, new) = match pair {
                (Some(old), Some(new)) => (old, new),
                // The edge is new, or does not exist any more.
                (Some(edge), None) | (None, Some(edge)) => {
                    changes.reach.union_with(&edge.sources);
                    changes.reach.union_with(&edge.targets);
                    changes.filters.union_with(&edge.targets);
                    continue;
                }
                (None, None) => continue,
            };
            changes.reach.union_with(&old.sources.symmetric_difference(&new.sources));
            changes.reach.union_with(&old.targets.symmetric_difference(&new.targets));
            changes.filters.union_with(&old.targets.symmetric_difference(&new.targets));
            if !context.is_same_rule(old, new, &mut changes.filters) {
                changes.filters.union_with(&old.targets);
                changes.filters.union_with(&new.targets);
            }
        }
        for (old, new) in before.ssh.iter().zip(&self.ssh) {
            self.add_logins(old, new, changed, &mut changes.ssh);
        }
        for (old, new) in before.attributed.0.iter().zip(&self.attributed.0) {
            changes.attributes.union_with(&old.0.symmetric_difference(&new.0));
        }
        changes
    }

    fn add_logins(&self, old: &SshEdge, new: &SshEdge, changed: &NodeSet, to: &mut NodeSet) {
        to.union_with(&old.targets.symmetric_difference(&new.targets));
        // A node that remains a source may have another owner or other tags.
        let has_same_sources = old.sources == new.sources
            && old.locals == new.locals
            && new.sources.intersection(changed).is_empty();
        if has_same_sources {
            return to.union_with(changed);
        }
        if new.reaches_own || new.has_locals {
            return to.union_with(&NodeSet::all(self.nodes.nodes.len()));
        }
        to.union_with(&old.targets);
        to.union_with(&new.targets);
    }
}

/// Merges both lists by key: an edge of each list with the same key is one pair.
fn pairs<'a>(
    before: &'a [Edge],
    after: &'a [Edge],
) -> impl Iterator<Item = (Option<&'a Edge>, Option<&'a Edge>)> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (before.peek(), after.peek()) {
            (Some(old), Some(new)) => old.key.cmp(&new.key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let old = order.is_le().then(|| before.next()).flatten();
        Some((old, order.is_ge().then(|| after.next()).flatten()))
    })
}

#[derive(Clone, Copy)]
struct Context<'a> {
    nodes: &'a Nodes,
    changed: &'a NodeSet,
}

impl Context<'_> {
    /// Whether two edges make the same rule at a common target. Adds nodes to `changes` if their rules differ in
    /// addresses only.
    fn is_same_rule(self, old: &Edge, new: &Edge, changes: &mut NodeSet) -> bool {
        let has_same_position = old.rule == new.rule && old.first == new.first;
        has_same_position && old.texts == new.texts && self.is_same(&old.kind, &new.kind, changes)
    }

    fn is_same(self, old: &EdgeKind, new: &EdgeKind, changes: &mut NodeSet) -> bool {
        match (old, new) {
            (
                EdgeKind::Packets { to: old, packets: old_packets, is_via: was_via },
                EdgeKind::Packets { to: new, packets, is_via },
            ) => {
                let is_similar =
                    old_packets == packets && was_via == is_via && old.len() == new.len();
                is_similar
                    && old.iter().zip(new).all(|(old, new)| self.is_same_target(old, new, changes))
            }
            (
                EdgeKind::Capabilities { to: old, capabilities: had },
                EdgeKind::Capabilities { to: new, capabilities },
            ) => {
                let is_similar = had == capabilities && old.len() == new.len();
                is_similar
                    && old.iter().zip(new).all(|(old, new)| is_same_resolved(old, new, changes))
            }
            _ => false,
        }
    }

    fn is_same_target(self, old: &Target, new: &Target, changes: &mut NodeSet) -> bool {
        match (old, new) {
            (Target::Any, Target::Any) | (Target::Internet, Target::Internet) => true,
            (Target::Net(old), Target::Net(new)) => old == new,
            (Target::Nodes(old), Target::Nodes(new)) => {
                let mut differing = old.symmetric_difference(new);
                differing.union_with(&new.intersection(self.changed));
                if !differing.is_empty() {
                    // A router's rule contains addresses of other nodes, too.
                    let routers = self.nodes.nodes.iter().enumerate();
                    let routers = routers.filter(|(_, node)| node.subnets().next().is_some());
                    changes.union_with(&routers.map(|(index, _)| index).collect());
                    changes.union_with(&differing);
                }
                true
            }
            _ => false,
        }
    }
}

fn is_same_resolved(old: &Resolved, new: &Resolved, changes: &mut NodeSet) -> bool {
    changes.union_with(&old.nodes.symmetric_difference(&new.nodes));
    let others = |of: &Resolved| (of.is_any, of.is_all, of.is_internet);
    old.nets == new.nets && others(old) == others(new)
}
