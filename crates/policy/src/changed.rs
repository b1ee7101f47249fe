//! What a change of some nodes changed for all: between two compilations of one policy.

use std::cmp::Ordering;

use crate::{
    compile::{Compiled, Edge, Target, What},
    nodes::Nodes,
    resolve::Resolved,
    set::NodeSet,
    ssh::SshEdge,
};

/// Nodes for which something may be different. It is not for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
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
    pub fn moved(&self, before: &Self, changed: &NodeSet) -> Moved {
        let mut moved = Moved { filters: changed.clone(), ..Moved::default() };
        let context = Context { nodes: &self.nodes, changed };
        for pair in pairs(&before.edges, &self.edges) {
            let (old, new) = match pair {
                (Some(old), Some(new)) => (old, new),
                // It was about no node before, or is about none any more.
                (Some(edge), None) | (None, Some(edge)) => {
                    moved.reach.add(&edge.sources);
                    moved.reach.add(&edge.targets);
                    moved.filters.add(&edge.targets);
                    continue;
                }
                (None, None) => continue,
            };
            moved.reach.add(&old.sources.either(&new.sources));
            moved.reach.add(&old.targets.either(&new.targets));
            moved.filters.add(&old.targets.either(&new.targets));
            if !context.is_same_rule(old, new, &mut moved.filters) {
                moved.filters.add(&old.targets);
                moved.filters.add(&new.targets);
            }
        }
        for (old, new) in before.ssh.iter().zip(&self.ssh) {
            self.add_logins(old, new, changed, &mut moved.ssh);
        }
        for (old, new) in before.attributed.0.iter().zip(&self.attributed.0) {
            moved.attributes.add(&old.0.either(&new.0));
        }
        moved
    }

    fn add_logins(&self, old: &SshEdge, new: &SshEdge, changed: &NodeSet, to: &mut NodeSet) {
        to.add(&old.targets.either(&new.targets));
        // A node that remains a source may have another owner or other tags.
        let has_same_sources = old.sources == new.sources
            && old.locals == new.locals
            && new.sources.both(changed).is_empty();
        if has_same_sources {
            return to.add(changed);
        }
        if new.reaches_own || new.has_locals {
            return to.add(&NodeSet::all(self.nodes.nodes.len()));
        }
        to.add(&old.targets);
        to.add(&new.targets);
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
    fn is_same_rule(self, old: &Edge, new: &Edge, moved: &mut NodeSet) -> bool {
        let has_same_place = old.rule == new.rule && old.first == new.first;
        has_same_place && old.texts == new.texts && self.is_same(&old.what, &new.what, moved)
    }

    fn is_same(self, old: &What, new: &What, moved: &mut NodeSet) -> bool {
        match (old, new) {
            (
                What::Packets { to: old, packets: old_packets, is_via: was_via },
                What::Packets { to: new, packets, is_via },
            ) => {
                let is_like = old_packets == packets && was_via == is_via && old.len() == new.len();
                is_like && old.iter().zip(new).all(|(old, new)| self.is_there(old, new, moved))
            }
            (
                What::Capabilities { to: old, capabilities: had },
                What::Capabilities { to: new, capabilities },
            ) => {
                let is_like = had == capabilities && old.len() == new.len();
                is_like && old.iter().zip(new).all(|(old, new)| is_meant(old, new, moved))
            }
            _ => false,
        }
    }

    fn is_there(self, old: &Target, new: &Target, moved: &mut NodeSet) -> bool {
        match (old, new) {
            (Target::Any, Target::Any) | (Target::Internet, Target::Internet) => true,
            (Target::Net(old), Target::Net(new)) => old == new,
            (Target::Nodes(old), Target::Nodes(new)) => {
                let mut differing = old.either(new);
                differing.add(&new.both(self.changed));
                if !differing.is_empty() {
                    // A router has the addresses of others in its rule, too.
                    let routers = self.nodes.nodes.iter().enumerate();
                    let routers = routers.filter(|(_, node)| node.subnets().next().is_some());
                    moved.add(&routers.map(|(place, _)| place).collect());
                    moved.add(&differing);
                }
                true
            }
            _ => false,
        }
    }
}

fn is_meant(old: &Resolved, new: &Resolved, moved: &mut NodeSet) -> bool {
    moved.add(&old.nodes.either(&new.nodes));
    let others = |of: &Resolved| (of.is_any, of.is_all, of.is_internet);
    old.nets == new.nets && others(old) == others(new)
}
