//! Small numbers for nodes, and the sets of them that followers are told by.

use std::collections::BTreeMap;

use policy::NodeSet;

use crate::{
    object::{Node, NodeId, UserId},
    telling::is_reachable,
};

/// Small numbers for nodes.
#[derive(Debug, Default)]
pub(crate) struct Places {
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

impl Places {
    /// One for a node that is new.
    pub fn take(&mut self, node: &Node) -> u32 {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.nodes.push(None);
                number(self.nodes.len() - 1)
            }
        };
        self.nodes[place as usize] = Some(node.id);
        self.sort(place, None, Some(node));
        place
    }

    /// The node that was at a place is there again.
    pub fn take_again(&mut self, place: u32, node: &Node) -> u32 {
        self.nodes[place as usize] = Some(node.id);
        self.sort(place, None, Some(node));
        place
    }

    /// The node at a place is another than it was, or there is none any more.
    pub fn sort(&mut self, place: u32, before: Option<&Node>, now: Option<&Node>) {
        let at = place as usize;
        let put = |set: &mut NodeSet, is_in| if is_in { set.insert(at) } else { set.remove(at) };
        put(&mut self.reachable, now.is_some_and(is_reachable));
        put(&mut self.routers, now.is_some_and(|node| !node.approved.is_empty()));
        let [had, has] = [before, now].map(|node| node.map(|node| node.user));
        if had == has {
            return;
        }
        if let Some(user) = had
            && let Some(places) = self.of_users.get_mut(&user)
        {
            places.remove(at);
            if places.is_empty() {
                self.of_users.remove(&user);
            }
        }
        if let Some(user) = has {
            self.of_users.entry(user).or_default().insert(at);
        }
    }

    /// A node is gone. Its place is kept free until nobody can take another for it.
    pub fn leave(&mut self, place: u32, node: &Node) {
        self.nodes[place as usize] = None;
        self.sort(place, Some(node), None);
    }

    /// A place may be taken again.
    pub fn free(&mut self, place: u32) {
        if place != NOWHERE {
            self.free.push(place);
        }
    }
}

/// Of a node that was made and forgotten between two looks at what others wrote: it had no place here.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// A place, or a number of places, as it is kept.
pub(crate) fn number(of: usize) -> u32 {
    u32::try_from(of).expect("each node has an address of IPv4, and those are fewer")
}
