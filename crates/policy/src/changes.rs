//! What a change of some nodes changed for all: between two compilations of one policy.

use std::cmp::Ordering;

use crate::{
    compile::{Compiled, Edge, EdgeKind, Target},
    nodes::Nodes,
    resolve::Resolved,
    set::NodeSet,
    ssh::SshEdge,
};

/// Nodes for which something may be different. It is not for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedNodes {
    /// Their filters.
    pub filters: NodeSet,
    /// Whom they reach, or who reaches them.
    pub reach: NodeSet,
    /// Who may log in there.
    pub ssh: NodeSet,
    /// What they are told of themselves.
    pub attributes: NodeSet,
}

impl Compiled {
    /// What is different from an earlier compilation of the same policy, when these nodes have
    /// changed.
    pub fn changes_since(&self, before: &Self, changed: &NodeSet) -> ChangedNodes {
        let mut changes = ChangedNodes { filters: changed.clone(), ..ChangedNodes::default() };
        let context = Context { nodes: &self.nodes, changed };
        for pair in pairs(&before.edges, &self.edges) {
            let (old, new) = match pair {
                (Some(old), Some(new)) => (old, new),
                // It was about no node before, or is about none any more.
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

/// Edges of both, in order: those with the same key together.
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
    /// Whether two edges make the same rule at a node that is a target of both. Puts nodes in where
    /// only they differ.
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
                let is_like = old_packets == packets && was_via == is_via && old.len() == new.len();
                is_like && old.iter().zip(new).all(|(old, new)| self.is_there(old, new, changes))
            }
            (
                EdgeKind::Capabilities { to: old, capabilities: had },
                EdgeKind::Capabilities { to: new, capabilities },
            ) => {
                let is_like = had == capabilities && old.len() == new.len();
                is_like && old.iter().zip(new).all(|(old, new)| is_meant(old, new, changes))
            }
            _ => false,
        }
    }

    fn is_there(self, old: &Target, new: &Target, changes: &mut NodeSet) -> bool {
        match (old, new) {
            (Target::Any, Target::Any) | (Target::Internet, Target::Internet) => true,
            (Target::Net(old), Target::Net(new)) => old == new,
            (Target::Nodes(old), Target::Nodes(new)) => {
                let mut differing = old.symmetric_difference(new);
                differing.union_with(&new.intersection(self.changed));
                if !differing.is_empty() {
                    // A router has the addresses of others in its rule, too.
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

fn is_meant(old: &Resolved, new: &Resolved, changes: &mut NodeSet) -> bool {
    changes.union_with(&old.nodes.symmetric_difference(&new.nodes));
    let others = |of: &Resolved| (of.is_any, of.is_all, of.is_internet);
    old.nets == new.nets && others(old) == others(new)
}
