//! The policies of the network: the active one, and its effects on tags, routes and addresses.

use std::sync::Arc;

use ipnet::IpNet;
use policy::{Compiled, Nodes, Policy, Role};

use super::State;
use crate::{
    change_log::{Change, Parts},
    node_index, nodes,
    object::{self, Kind, Node, NodeId, PolicyId, User, UserId},
    refusal::Refusal,
    routers::is_exit,
    time::Time,
};

/// The maximum number of approved routes of a node. Beyond it, routes that are not advertised lose their approval.
const MAX_APPROVED: usize = 1024;

/// A policy that passed its tests in this network, compared with the active one.
#[derive(Debug)]
pub struct PolicyReview {
    /// The active policy.
    pub before: Compiled,
    /// The reviewed policy, with the routes that it approves.
    pub after: Compiled,
    /// Routes that it approves, each with the name of the advertising node.
    pub routes: Vec<(String, IpNet)>,
    /// Likely mistakes.
    pub warnings: Vec<policy::Fault>,
}

/// Address pools of the policy.
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// Pools of a node.
    pub own: Vec<IpNet>,
    /// All pools.
    pub all: Vec<IpNet>,
}

impl State {
    /// The active policy. Without one, every node reaches every other.
    pub fn policy(&self) -> Option<&object::Policy> {
        self.policies.active()
    }

    /// All stored policies, with the active one last.
    pub fn policies(&self) -> impl Iterator<Item = &object::Policy> {
        self.policies.saved()
    }

    /// Runs the tests of a policy in this network, and compares it with the active one.
    ///
    /// # Errors
    /// A test fails.
    pub fn review_policy(&self, text: &str, policy: &Policy) -> Result<PolicyReview, Refusal> {
        let mut nodes = self.policy_nodes();
        policy.run_tests(&nodes).map_err(Refusal::Policy)?;
        let warnings = policy.warnings(&nodes);
        let open = || Policy::parse("{}").expect("an empty policy is valid");
        let before = match self.policies.policy() {
            Some(policy) => policy.compile(&nodes),
            None => open().compile(&nodes),
        };
        let mut routes = Vec::new();
        if !self.is_in_force(text) {
            for (entry, known) in self.nodes.all().zip(&mut nodes.nodes) {
                let more = self.approvable(policy, &entry.node);
                routes.extend(more.iter().map(|net| (known.name.clone(), *net)));
                known.routes.extend(more);
            }
        }
        let after = policy.compile_shared(Arc::new(nodes));
        Ok(PolicyReview { before, after, routes, warnings })
    }

    /// Activates a policy, which was parsed from this text, and approves routes by it.
    ///
    /// # Errors
    /// A test fails.
    pub fn save_policy(
        &mut self,
        text: &str,
        policy: &Policy,
        now: Time,
    ) -> Result<PolicyReview, Refusal> {
        let review = self.review_policy(text, policy)?;
        if !self.is_in_force(text) {
            self.store_and_activate(text.to_owned(), policy.clone(), now);
        }
        Ok(review)
    }

    fn is_in_force(&self, text: &str) -> bool {
        self.policy().is_some_and(|current| current.text == text)
    }

    fn store_and_activate(&mut self, text: String, policy: Policy, now: Time) {
        let id = PolicyId(self.journal.next_number(Kind::Policy));
        let saved = object::Policy { id, text, created: now };
        self.store(&saved);
        self.policies.put(id, Some(saved));
        for id in self.policies.excess() {
            self.store_removal(Kind::Policy, id.0);
            self.policies.put(id, None);
        }
        self.activate(policy);
        self.journal.note(Change::Policy);
        for id in self.nodes.ids().collect::<Vec<_>>() {
            self.approve_routes_of(id, now);
            // The policy decides whether peers see an exit node as suggested.
            if self.nodes[&id].node.routes().any(|net| is_exit(&net)) {
                self.note_parts(id, Parts::PEER_VIEW);
            }
        }
    }

    /// Replaces the name of a user in the policy, so that the user keeps all rights.
    ///
    /// # Errors
    /// The policy has the new name already, which would give the user more rights. Or a mention in the policy would
    /// refer to another user.
    pub(super) fn rename_user_in_policy(
        &mut self,
        user: UserId,
        name: &str,
        now: Time,
    ) -> Result<(), Refusal> {
        let (Some(policy), Some(saved)) = (self.policies.policy(), self.policy()) else {
            return Ok(());
        };
        if let Some(location) = policy.find_name(name) {
            return Err(Refusal::NameInPolicy(location));
        }
        let users = self.policy_users_only();
        let mut after = users.clone();
        let renamed_user = after.users.iter_mut().find(|one| one.id == user.0.unsigned_abs());
        // A name that the user may have chosen is empty here.
        if let Some(one) = renamed_user.filter(|one| !one.name.is_empty()) {
            name.clone_into(&mut one.name);
        }
        let text = policy.with_renamed_user(&saved.text, &users, user.0.unsigned_abs(), name);
        let renamed = text.as_ref().map(|text| Policy::parse_saved(text)).transpose();
        let renamed = renamed.map_err(Refusal::Policy)?;
        let new = renamed.as_ref().unwrap_or(policy);
        if new.left_out() != policy.left_out() || !new.names_same_users(&after, policy, &users) {
            return Err(Refusal::InvalidName(name.to_owned()));
        }
        if let Some((text, renamed)) = text.zip(renamed) {
            self.store_and_activate(text, renamed, now);
        }
        Ok(())
    }

    /// The first location in the policy that names this user.
    pub(super) fn named_in_policy(&self, user: UserId) -> Option<policy::Fault> {
        let users = self.policy_users_only();
        self.policies.policy()?.find_mention_of_user(&users, user.0.unsigned_abs())
    }

    /// The omitted parts of the policy, with line and key.
    pub fn left_out(&self) -> Vec<String> {
        let left_out = self.policies.policy().map_or(&[][..], Policy::left_out);
        left_out.iter().map(|fault| format!("left out: {fault}")).collect()
    }

    /// Names in the policy that match no user, with line and key.
    pub fn unmatched_policy_names(&self) -> Vec<String> {
        let users = self.policy_users_only();
        let warnings = self.policies.policy().map(|policy| policy.warnings(&users));
        let is_name = |fault: &policy::Fault| matches!(fault.reason, policy::Reason::NoUser(_));
        let names = warnings.into_iter().flatten().filter(is_name);
        names.map(|fault| fault.to_string()).collect()
    }

    /// Activates the last stored policy.
    pub(super) fn load_policy(&mut self) -> Result<(), policy::Refusal> {
        let Some(saved) = self.policy() else {
            self.policies.activate(None);
            return Ok(());
        };
        let policy = Policy::parse_saved(&saved.text)?;
        self.activate(policy);
        Ok(())
    }

    fn activate(&mut self, policy: Policy) {
        let nodes =
            (0..self.nodes.indexes().count()).map(|index| policy_node_at(&self.nodes, index));
        let nodes =
            Nodes { users: self.policy_users(), nodes: nodes.collect(), domains: Vec::new() };
        self.policies.activate(Some((policy, nodes)));
    }

    /// Updates the compiled policy after changes of nodes and users.
    pub(super) fn renew_access(&mut self) {
        if !self.policies.access().is_stale() {
            return;
        }
        let users = self.policy_users();
        let renewed = self.policies.renew(users, |index| policy_node_at(&self.nodes, index));
        for index in renewed.iter() {
            let index = node_index::as_index(index);
            if let Some(id) = self.nodes.at(index).map(|entry| entry.node.id) {
                self.journal.note(Change::Node { id, index, parts: Parts::ACCESS });
            }
        }
    }

    /// Returns the tags of a node: those of `owner` and the requested ones.
    ///
    /// # Errors
    /// The owner may not assign a requested tag.
    pub(super) fn check_requested_tags(
        &self,
        owner: &policy::Node,
        requested: &[String],
    ) -> Result<Vec<String>, Refusal> {
        let mut tags = owner.tags.clone();
        let more: Vec<&String> = requested.iter().filter(|tag| !tags.contains(tag)).collect();
        if !more.is_empty() {
            let users = self.policy_users_only();
            let policy = self.policies.policy();
            let may =
                |tag: &str| policy.is_some_and(|own| own.allows_tag(&users, owner.clone(), tag));
            let denied: Vec<String> =
                more.iter().filter(|tag| !may(tag)).map(|tag| (*tag).clone()).collect();
            if !denied.is_empty() {
                return Err(Refusal::TagsDenied(denied));
            }
        }
        tags.extend(more.into_iter().cloned());
        tags.sort_unstable();
        tags.dedup();
        Ok(tags)
    }

    /// The address pools for a new node.
    pub(super) fn pools(&self, node: policy::Node) -> Pools {
        let Some(policy) = self.policies.policy() else { return Pools::default() };
        let all: Vec<IpNet> = policy.pools().collect();
        if all.is_empty() {
            return Pools::default();
        }
        let users = self.policy_users();
        let alone = Nodes { users, nodes: vec![node], domains: Vec::new() };
        Pools { own: policy.address_pools_of(&alone, 0).to_vec(), all }
    }

    /// Approves the routes of a node that the policy approves automatically.
    pub(super) fn approve_routes_of(&mut self, id: NodeId, now: Time) {
        let (Some(entry), Some(policy)) = (self.nodes.get(id), self.policies.policy()) else {
            return;
        };
        let more = self.approvable(policy, &entry.node);
        if !more.is_empty() {
            self.change_node(id, now, |node| {
                if node.approved.len() + more.len() > MAX_APPROVED {
                    let offered = &node.hostinfo.routable;
                    node.approved.retain(|net| offered.contains(net));
                }
                node.approved.extend(more);
                Parts::WHOLE
            });
        }
    }

    /// The advertised routes of a node that a policy approves and that are not approved yet.
    fn approvable(&self, policy: &Policy, node: &Node) -> Vec<IpNet> {
        let is_open = |net: &&IpNet| !node.approved.contains(net);
        let mut offered: Vec<IpNet> =
            node.hostinfo.routable.iter().filter(is_open).copied().collect();
        if !offered.is_empty() {
            let alone = Nodes { nodes: vec![policy_node(node)], ..self.policy_users_only() };
            offered.retain(|net| policy.approves(&alone, 0, net));
        }
        offered
    }

    /// All users and nodes, in the form of the crate `policy`.
    fn policy_nodes(&self) -> Nodes {
        let nodes = self.nodes.all().map(|entry| policy_node(&entry.node)).collect();
        Nodes { nodes, ..self.policy_users_only() }
    }

    /// All users in the form of the crate `policy`, without nodes.
    fn policy_users_only(&self) -> Nodes {
        Nodes { users: self.policy_users(), ..Nodes::default() }
    }

    /// All users in the form of the crate `policy`, without names that they may have chosen themselves.
    fn policy_users(&self) -> Vec<policy::User> {
        let owner = self.owner();
        let users = self.directory.users().map(|user| policy::User {
            id: user.id.0.unsigned_abs(),
            name: if self.has_trusted_name(user) { user.name.clone() } else { String::new() },
            email: user.email.clone(),
            role: (Some(user.id) == owner).then_some(Role::Owner),
        });
        users.collect()
    }

    /// Whether a policy may refer to a user by name: an administrator set the name, or trusts the provider's names.
    fn has_trusted_name(&self, user: &User) -> bool {
        user.identity.is_none() || self.settings.trusts_usernames
    }

    /// Names in the policy that match no user because the user's name comes from a provider.
    pub fn untrusted_policy_names(&self) -> Vec<&str> {
        let Some(policy) = self.policies.policy() else { return Vec::new() };
        let users = self.directory.users().filter(|user| !self.has_trusted_name(user));
        users
            .map(|user| user.name.as_str())
            .filter(|name| policy.find_name(name).is_some())
            .collect()
    }
}

/// The node at an index in the form of the crate `policy`; a default node if the index is unused.
fn policy_node_at(nodes: &nodes::Nodes, index: u32) -> policy::Node {
    nodes.at(index).map_or_else(policy::Node::default, |entry| policy_node(&entry.node))
}

/// A node in the form of the crate `policy`.
pub(super) fn policy_node(node: &Node) -> policy::Node {
    policy::Node {
        name: node.name.clone(),
        user: node.user.map(|id| id.0.unsigned_abs()),
        tags: node.tags.clone(),
        addresses: vec![node.v4.into(), node.v6.into()],
        routes: node.routes().collect(),
    }
}
