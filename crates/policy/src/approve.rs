//! What nodes get without an administrator: routes by autoApprovers, tags by tagOwners, and
//! addresses by nodeAttrs.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::{
    alias::Alias,
    model::Policy,
    nodes::{Node, Nodes, User},
    resolve::Names,
};

impl Policy {
    /// Whether a node's route is approved automatically. The default routes are approved by `exitNode` only.
    pub fn approves(&self, nodes: &Nodes, node: usize, route: &IpNet) -> bool {
        if route.prefix_len() == 0 {
            return self.is_one(nodes, node, &self.exit_approvers);
        }
        let covering = self.route_approvers.iter().filter(|(net, _)| net.contains(route));
        let mut covering = covering.filter(|(net, _)| net.prefix_len() > 0);
        covering.any(|(_, approvers)| self.is_one(nodes, node, approvers))
    }

    /// The networks from which a new node's IPv4 address is allocated, by the first rule of nodeAttrs with a
    /// pool. Empty if no rule has one.
    pub fn address_pools_of(&self, nodes: &Nodes, node: usize) -> &[IpNet] {
        let mut rules = self.attributes.iter().filter(|rule| !rule.pools.is_empty());
        let rule = rules.find(|rule| self.is_one(nodes, node, &rule.targets));
        rule.map_or(&[], |rule| &rule.pools)
    }

    /// All address pools that are reserved for some nodes.
    pub fn pools(&self) -> impl Iterator<Item = IpNet> {
        self.attributes.iter().flat_map(|rule| rule.pools.iter().copied())
    }

    fn is_one(&self, nodes: &Nodes, index: usize, approvers: &[Alias]) -> bool {
        let names = Names { policy: self, nodes };
        names.members(&names.resolve(approvers)).contains(index)
    }

    /// Whether a user may assign this tag to a node: as an owner of the tag, or of a tag that owns it.
    pub fn user_owns_tag(&self, nodes: &Nodes, user: &User, tag: &str) -> bool {
        let owner = Node { user: Some(user.id), ..Node::default() };
        self.allows_tag(nodes, owner, tag)
    }

    /// Whether a node with this user or these tags may have the tag.
    pub fn allows_tag(&self, nodes: &Nodes, owner: Node, tag: &str) -> bool {
        // A network with this node only, because `Names` alone resolves aliases.
        let alone = Nodes {
            users: nodes.users.clone(),
            nodes: vec![owner],
            domains: nodes.domains.clone(),
        };
        let mut seen = BTreeSet::new();
        let mut tags = vec![tag];
        while let Some(tag) = tags.pop() {
            let owners = self.tag_owners.get(tag).map_or(&[][..], Vec::as_slice);
            if seen.insert(tag) && self.is_one(&alone, 0, owners) {
                return true;
            }
            tags.extend(owners.iter().filter_map(|owner| match owner {
                Alias::Tag(tag) if !seen.contains(tag.as_str()) => Some(tag.as_str()),
                _ => None,
            }));
        }
        false
    }
}
