//! Resolves names to nodes and networks.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use crate::{
    alias::{Alias, Autogroup, text},
    model::Policy,
    nodes::{Node, Nodes, Role, User},
    set::NodeSet,
};

/// The addresses of `*` as a source: Tailscale's addresses without those of ChromeOS machines. (Recorded.)
const ALL_NODES: [&str; 3] =
    ["100.64.0.0-100.115.91.255", "100.115.94.0-100.127.255.255", "fd7a:115c:a1e0::/48"];

/// The nodes and networks of a list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Nodes, by their own addresses.
    pub nodes: NodeSet,
    /// Networks in the text, and those of hosts and ipsets.
    pub nets: Vec<IpNet>,
    /// `*`: all nodes of the network, and the networks that they route.
    pub is_any: bool,
    /// Every address: `autogroup:danger-all`.
    pub is_all: bool,
    pub is_internet: bool,
}

/// A policy and a network, which resolve names.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub policy: &'a Policy,
    pub nodes: &'a Nodes,
}

impl Names<'_> {
    pub(crate) fn resolve<'a>(self, aliases: impl IntoIterator<Item = &'a Alias>) -> Resolved {
        let mut resolved = Resolved::default();
        for alias in aliases {
            self.add(alias, &mut resolved);
        }
        resolved.nets.sort();
        resolved.nets.dedup();
        resolved
    }

    fn add(self, alias: &Alias, to: &mut Resolved) {
        match alias {
            Alias::Any => to.is_any = true,
            Alias::User(name) => {
                let named = self.nodes.user(name).map(|user| user.id);
                self.add_users(to, |user| named == Some(user.id));
            }
            Alias::Domain(domain) => self.add_users(to, |user| user.is_of(domain)),
            Alias::Group(name) => {
                let members = self.policy.groups.get(name).map_or(&[][..], Vec::as_slice);
                let members: BTreeSet<u64> = members
                    .iter()
                    .filter_map(|name| self.nodes.user(name))
                    .map(|user| user.id)
                    .collect();
                self.add_users(to, |user| members.contains(&user.id));
            }
            Alias::Tag(tag) => self.add_nodes(to, |node| node.tags.contains(tag)),
            Alias::Host(name) => to.nets.extend(self.policy.hosts.get(name)),
            Alias::Set(name) => to.nets.extend(self.policy.sets.get(name).into_iter().flatten()),
            Alias::Net(net) => to.nets.push(*net),
            Alias::Auto(Autogroup::Internet) => to.is_internet = true,
            Alias::Auto(Autogroup::DangerAll) => to.is_all = true,
            Alias::Auto(Autogroup::Member) => self.add_nodes(to, Node::is_personal),
            Alias::Auto(Autogroup::Tagged) => self.add_nodes(to, |node| !node.is_personal()),
            Alias::Auto(Autogroup::Admin) => {
                self.add_users(to, |user| matches!(user.role, Some(Role::Admin | Role::Owner)));
            }
            Alias::Auto(Autogroup::Owner) => {
                self.add_users(to, |user| user.role == Some(Role::Owner));
            }
            // Depends on the source node: the callers resolve it.
            Alias::Auto(Autogroup::Itself) => {}
        }
    }

    fn add_users(self, to: &mut Resolved, is_meant: impl Fn(&User) -> bool) {
        let users: BTreeSet<u64> =
            self.nodes.users.iter().filter(|user| is_meant(user)).map(|user| user.id).collect();
        let has = |node: &Node| node.user.is_some_and(|user| users.contains(&user));
        self.add_nodes(to, |node| node.is_personal() && has(node));
    }

    fn add_nodes(self, to: &mut Resolved, is_meant: impl Fn(&Node) -> bool) {
        let nodes = self.nodes.nodes.iter().enumerate();
        let is_meant = |node: &Node| !node.is_vacant() && is_meant(node);
        to.nodes.union_with(
            &nodes.filter(|(_, node)| is_meant(node)).map(|(index, _)| index).collect(),
        );
    }

    /// The nodes with an address in the resolved names.
    pub(crate) fn members(self, of: &Resolved) -> NodeSet {
        let nodes = &self.nodes.nodes;
        if of.is_any || of.is_all {
            return NodeSet::all(nodes.len());
        }
        let mut members = of.nodes.clone();
        for (index, node) in nodes.iter().enumerate() {
            if of.nets.iter().any(|net| node.is_in(net)) {
                members.insert(index);
            }
        }
        members
    }

    /// The sources of a filter, sorted by their text.
    pub(crate) fn sources(self, of: &Resolved) -> Vec<String> {
        if of.is_all {
            return vec!["*".into()];
        }
        let nodes = &self.nodes.nodes;
        let mut sources: Vec<String> = of.nets.iter().map(text).collect();
        for index in of.nodes.iter() {
            sources.extend(nodes[index].addresses.iter().map(IpAddr::to_string));
        }
        if of.is_any {
            sources.extend(ALL_NODES.map(str::to_owned));
            let addresses = nodes.iter().flat_map(|node| &node.addresses);
            sources.extend(addresses.filter(|own| !is_in_all_nodes(own)).map(IpAddr::to_string));
            sources.extend(nodes.iter().flat_map(Node::subnets).map(ToString::to_string));
        }
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

/// Whether `ALL_NODES` contains an address. A network with other prefixes has addresses outside.
fn is_in_all_nodes(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            // 100.64.0.0/10 without 100.115.92.0/23.
            bits >> 22 == 0x6440_0000 >> 22 && bits >> 9 != 0x6473_5c00 >> 9
        }
        IpAddr::V6(address) => address.segments()[..3] == [0xfd7a, 0x115c, 0xa1e0],
    }
}

impl Resolved {
    pub(crate) fn is_empty(&self) -> bool {
        let is_named = self.is_any || self.is_all || self.is_internet;
        !is_named && self.nets.is_empty() && self.nodes.is_empty()
    }

    /// Whether it contains this address of a node.
    pub(crate) fn has(&self, index: usize, address: &IpAddr) -> bool {
        self.is_any
            || self.is_all
            || self.nodes.contains(index)
            || self.nets.iter().any(|net| net.contains(address))
    }
}
