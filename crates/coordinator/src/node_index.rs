//! Small numbers for nodes, and the sets of them that followers are told by.

use std::collections::BTreeMap;

use policy::NodeSet;

use crate::{
    node_updates::is_reachable,
    object::{Node, NodeId, UserId},
};

/// Small numbers for nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeIndexes {
    /// Whose each is.
    pub nodes: Vec<Option<NodeId>>,
    /// Of nodes that can be reached at all.
    pub reachable: NodeSet,
    /// Of nodes that networks may go to.
    pub routers: NodeSet,
    /// By owner, which tagged nodes have not.
    pub of_users: BTreeMap<Option<UserId>, NodeSet>,
    free: Vec<u32>,
}

impl NodeIndexes {
    /// One for a node that is new.
    pub fn allocate(&mut self, node: &Node) -> u32 {
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

    /// The node that was at a place is there again.
    pub fn restore(&mut self, index: u32, node: &Node) -> u32 {
        self.nodes[index as usize] = Some(node.id);
        self.update_sets(index, None, Some(node));
        index
    }

    /// The node at a place is another than it was, or there is none any more.
    pub fn update_sets(&mut self, index: u32, before: Option<&Node>, now: Option<&Node>) {
        let at = index as usize;
        let put = |set: &mut NodeSet, is_in| if is_in { set.insert(at) } else { set.remove(at) };
        put(&mut self.reachable, now.is_some_and(is_reachable));
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

    /// A node is gone. Its place is kept free until nobody can take another for it.
    pub fn vacate(&mut self, index: u32, node: &Node) {
        self.nodes[index as usize] = None;
        self.update_sets(index, Some(node), None);
    }

    /// A place may be taken again.
    pub fn release(&mut self, index: u32) {
        if index != NO_INDEX {
            self.free.push(index);
        }
    }
}

/// Of a node that was made and forgotten between two looks at what others wrote: it had no place here.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// A place, or a number of places, as it is kept.
pub(crate) fn as_index(of: usize) -> u32 {
    u32::try_from(of).expect("each node has an address of IPv4, and those are fewer")
}
