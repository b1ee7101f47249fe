//! What nodes may do without being asked: routes by autoApprovers, tags by tagOwners.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::{
    alias::Alias,
    model::Policy,
    nodes::{Node, Nodes, User},
    resolve::Names,
};

impl Policy {
    /// Whether a node's route is approved at once. The way to the internet only by `exitNode`.
    pub fn approves(&self, nodes: &Nodes, node: usize, route: &IpNet) -> bool {
        if route.prefix_len() == 0 {
            return self.is_one(nodes, node, &self.exit_approvers);
        }
        let covering = self.route_approvers.iter().filter(|(net, _)| net.contains(route));
        let mut covering = covering.filter(|(net, _)| net.prefix_len() > 0);
        covering.any(|(_, approvers)| self.is_one(nodes, node, approvers))
    }

    fn is_one(&self, nodes: &Nodes, place: usize, approvers: &[Alias]) -> bool {
        let names = Names { policy: self, nodes };
        names.members(&names.resolve(approvers)).contains(place)
    }

    /// Whether a user may give a node this tag.
    pub fn owns(&self, nodes: &Nodes, user: &User, tag: &str) -> bool {
        self.owns_by(nodes, user, tag, &mut BTreeSet::new())
    }

    fn owns_by<'a>(
        &'a self,
        nodes: &Nodes,
        user: &User,
        tag: &'a str,
        seen: &mut BTreeSet<&'a str>,
    ) -> bool {
        if !seen.insert(tag) {
            return false;
        }
        let names = Names { policy: self, nodes };
        // A node of this user stands for it: whom an alias means is decided in one place.
        let alone = Nodes {
            users: nodes.users.clone(),
            nodes: vec![Node { user: Some(user.id), ..Node::default() }],
            domains: Vec::new(),
        };
        let owners = self.tag_owners.get(tag).into_iter().flatten();
        owners.into_iter().any(|owner| match owner {
            Alias::Tag(tag) => self.owns_by(nodes, user, tag, seen),
            owner => {
                let names = Names { nodes: &alone, ..names };
                names.members(&names.resolve([owner])).contains(0)
            }
        })
    }
}
