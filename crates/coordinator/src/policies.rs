//! The stored policies, and the access control by the active one.

use std::collections::BTreeMap;

use policy::{Node, NodeSet, Nodes, Policy, User};

use crate::{
    access::Access,
    object::{self, PolicyId},
};

/// The number of stored policies. Older ones are deleted.
const MAX_POLICIES: usize = 100;

/// All policies. The last one is active.
#[derive(Debug)]
pub(crate) struct Policies {
    saved: BTreeMap<PolicyId, object::Policy>,
    access: Access,
}

impl Policies {
    /// Without a policy, every node reaches every other.
    pub(crate) fn new() -> Self {
        Self { saved: BTreeMap::new(), access: Access::open() }
    }

    /// All stored policies, with the active one last.
    pub(crate) fn saved(&self) -> impl DoubleEndedIterator<Item = &object::Policy> {
        self.saved.values()
    }

    /// The active policy as it is stored.
    pub(crate) fn active(&self) -> Option<&object::Policy> {
        self.saved().next_back()
    }

    pub(crate) fn get(&self, id: PolicyId) -> Option<&object::Policy> {
        self.saved.get(&id)
    }

    /// Sets or removes a stored policy. [`Policies::activate`] must follow if it is the last one.
    pub(crate) fn put(&mut self, id: PolicyId, policy: Option<object::Policy>) {
        match policy {
            Some(policy) => self.saved.insert(id, policy),
            None => self.saved.remove(&id),
        };
    }

    /// The oldest policies beyond the limit.
    pub(crate) fn excess(&self) -> Vec<PolicyId> {
        let count = self.saved.len().saturating_sub(MAX_POLICIES);
        self.saved.keys().take(count).copied().collect()
    }

    /// The access control.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The active policy.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        self.access.policy()
    }

    /// Compiles a policy for these nodes, at their indexes. `None` removes the policy.
    pub(crate) fn activate(&mut self, policy: Option<(Policy, Nodes)>) {
        self.access = match policy {
            Some((policy, nodes)) => Access::new(policy, nodes),
            None => Access::open(),
        };
    }

    /// Records that the node at an index may have changed.
    pub(crate) fn mark_node_changed(&mut self, index: u32) {
        self.access.mark_node_changed(index);
    }

    /// Records that users may have changed.
    pub(crate) fn mark_users_changed(&mut self) {
        self.access.mark_users_changed();
    }

    /// Compiles the policy again for the marked nodes and users, see [`Access::renew`].
    pub(crate) fn renew(&mut self, users: Vec<User>, node: impl Fn(u32) -> Node) -> NodeSet {
        self.access.renew(users, node)
    }
}
