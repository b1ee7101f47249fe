//! Indexes of nodes, and the sets of nodes by which streams compute their updates.

use std::collections::BTreeMap;

use policy::NodeSet;

use crate::object::{Node, NodeId, UserId};

/// Small numbers of nodes, which are reused.
#[derive(Debug, Default)]
pub(crate) struct NodeIndexes {
    /// The node at each index.
    nodes: Vec<Option<NodeId>>,
    /// Nodes with a disco key.
    reachable: NodeSet,
    /// Nodes with approved routes.
    routers: NodeSet,
    /// Nodes by owner; `None` for tagged nodes.
    of_users: BTreeMap<Option<UserId>, NodeSet>,
    free: Vec<u32>,
}

impl NodeIndexes {
    /// The node at an index.
    pub(crate) fn node_at(&self, index: usize) -> Option<NodeId> {
        *self.nodes.get(index)?
    }

    /// The number of indexes, with the unused ones.
    pub(crate) fn count(&self) -> u32 {
        as_index(self.nodes.len())
    }

    /// Nodes with a disco key.
    pub(crate) fn reachable(&self) -> &NodeSet {
        &self.reachable
    }

    /// Nodes with approved routes.
    pub(crate) fn routers(&self) -> &NodeSet {
        &self.routers
    }

    /// The nodes of an owner; `None` for tagged nodes.
    pub(crate) fn of_owner(&self, owner: Option<UserId>) -> Option<&NodeSet> {
        self.of_users.get(&owner)
    }

    /// The nodes of each owner.
    pub(crate) fn by_owner(&self) -> impl Iterator<Item = &NodeSet> {
        self.of_users.values()
    }

    /// Allocates an index for a new node.
    pub(crate) fn allocate(&mut self, node: &Node) -> u32 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.nodes.push(None);
                as_index(self.nodes.len() - 1)
            }
        };
        self.nodes[index as usize] = Some(node.id);
        self.update_sets(index, None, Some(node));
        index
    }

    /// Returns a removed node to its index.
    pub(crate) fn restore(&mut self, index: u32, node: &Node) -> u32 {
        self.nodes[index as usize] = Some(node.id);
        self.update_sets(index, None, Some(node));
        index
    }

    /// Updates the sets after the node at an index changed or was removed.
    pub(crate) fn update_sets(&mut self, index: u32, before: Option<&Node>, now: Option<&Node>) {
        let at = index as usize;
        let put = |set: &mut NodeSet, is_in| if is_in { set.insert(at) } else { set.remove(at) };
        put(&mut self.reachable, now.is_some_and(Node::is_reachable));
        put(&mut self.routers, now.is_some_and(|node| !node.approved.is_empty()));
        let [had, has] = [before, now].map(|node| node.map(|node| node.user));
        if had == has {
            return;
        }
        if let Some(user) = had
            && let Some(indexes) = self.of_users.get_mut(&user)
        {
            indexes.remove(at);
            if indexes.is_empty() {
                self.of_users.remove(&user);
            }
        }
        if let Some(user) = has {
            self.of_users.entry(user).or_default().insert(at);
        }
    }

    /// Removes the node at an index. The index is not reused before it is released.
    pub(crate) fn vacate(&mut self, index: u32, node: &Node) {
        self.nodes[index as usize] = None;
        self.update_sets(index, Some(node), None);
    }

    /// Allows an index to be reused.
    pub(crate) fn release(&mut self, index: u32) {
        if index != NO_INDEX {
            self.free.push(index);
        }
    }
}

/// The index of a node that another server added and removed between two reads, so that it never had an index here.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// Converts an index, or a number of indexes.
pub(crate) fn as_index(of: usize) -> u32 {
    u32::try_from(of).expect("each node has an address of IPv4, and those are fewer")
}
