//! Names to nodes and networks.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{
    alias::{Alias, Autogroup, text},
    model::Policy,
    nodes::{Node, Nodes, Role, User},
    set::NodeSet,
};

/// What `*` is as a source: Tailscale's addresses without those of ChromeOS's machines. (Recorded.)
const EVERYBODY: [&str; 3] =
    ["100.64.0.0-100.115.91.255", "100.115.94.0-100.127.255.255", "fd7a:115c:a1e0::/48"];

/// Whom a list of names means.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    /// By their own addresses.
    pub nodes: NodeSet,
    /// Literally.
    pub nets: Vec<IpNet>,
    /// `*`: the network's nodes, and what is behind them.
    pub is_any: bool,
    /// Every address there is.
    pub is_all: bool,
    pub is_internet: bool,
}

/// What names are resolved with.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub policy: &'a Policy,
    pub nodes: &'a Nodes,
}

impl Names<'_> {
    pub fn resolve<'a>(self, aliases: impl IntoIterator<Item = &'a Alias>) -> Resolved {
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
            Alias::User(name) => self.add_users(to, |user| self.is_user(user, name)),
            Alias::Domain(domain) => self.add_users(to, |user| {
                user.domain().is_some_and(|own| own.eq_ignore_ascii_case(domain))
            }),
            Alias::Group(name) => {
                let members = self.policy.groups.get(name).map_or(&[][..], Vec::as_slice);
                self.add_users(to, |user| members.iter().any(|name| self.is_user(user, name)));
            }
            Alias::Tag(tag) => self.add_nodes(to, |node| node.tags.contains(tag)),
            Alias::Host(name) => to.nets.extend(self.policy.hosts.get(name)),
            Alias::Set(name) => to.nets.extend(self.set(name)),
            Alias::Net(net) => to.nets.push(*net),
            Alias::Auto(Autogroup::Internet) => to.is_internet = true,
            Alias::Auto(Autogroup::DangerAll) => to.is_all = true,
            Alias::Auto(Autogroup::Member) => self.add_nodes(to, Node::is_personal),
            Alias::Auto(Autogroup::Tagged) => self.add_nodes(to, |node| !node.is_personal()),
            Alias::Auto(Autogroup::Admin) => {
                self.add_users(to, |user| matches!(user.role, Some(Role::Admin | Role::Owner)))
            }
            Alias::Auto(Autogroup::Owner) => {
                self.add_users(to, |user| user.role == Some(Role::Owner));
            }
            // Differs from node to node: its users resolve it.
            Alias::Auto(Autogroup::Itself) => {}
        }
    }

    fn is_user(self, user: &User, name: &str) -> bool {
        self.nodes.user(name).is_some_and(|found| found.id == user.id)
    }

    fn add_users(self, to: &mut Resolved, is_meant: impl Fn(&User) -> bool) {
        let users: Vec<u64> =
            self.nodes.users.iter().filter(|user| is_meant(user)).map(|user| user.id).collect();
        let has = |node: &Node| node.user.is_some_and(|user| users.contains(&user));
        self.add_nodes(to, |node| node.is_personal() && has(node));
    }

    fn add_nodes(self, to: &mut Resolved, is_meant: impl Fn(&Node) -> bool) {
        let nodes = self.nodes.nodes.iter().enumerate();
        nodes.filter(|(_, node)| is_meant(node)).for_each(|(place, _)| to.nodes.insert(place));
    }

    /// The networks of an IP set: its parts in their order.
    fn set(self, name: &str) -> Vec<IpNet> {
        let mut nets = Vec::new();
        for part in self.policy.sets.get(name).into_iter().flatten() {
            let part_nets = match &part.alias {
                Alias::Set(other) => self.set(other),
                Alias::Host(host) => self.policy.hosts.get(host).copied().into_iter().collect(),
                Alias::Net(net) => vec![*net],
                _ => Vec::new(),
            };
            if part.is_removed {
                for gone in &part_nets {
                    nets = nets.iter().flat_map(|net| without(net, gone)).collect();
                }
            } else {
                nets.extend(part_nets);
            }
        }
        nets
    }

    /// The nodes with an address in it.
    pub fn members(self, of: &Resolved) -> NodeSet {
        let nodes = &self.nodes.nodes;
        if of.is_any || of.is_all {
            return NodeSet::all(nodes.len());
        }
        let mut members = of.nodes.clone();
        for (place, node) in nodes.iter().enumerate() {
            if of.nets.iter().any(|net| node.is_in(net)) {
                members.insert(place);
            }
        }
        members
    }

    /// As a filter's sources, in the order of their text.
    pub fn sources(self, of: &Resolved) -> Vec<String> {
        if of.is_all {
            return vec!["*".into()];
        }
        let nodes = &self.nodes.nodes;
        let mut sources: Vec<String> = of.nets.iter().map(text).collect();
        for place in of.nodes.iter() {
            sources.extend(nodes[place].addresses.iter().map(IpAddr::to_string));
        }
        if of.is_any {
            sources.extend(EVERYBODY.map(str::to_owned));
            sources.extend(nodes.iter().flat_map(Node::subnets).map(ToString::to_string));
        }
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

impl Resolved {
    pub fn is_empty(&self) -> bool {
        let is_named = self.is_any || self.is_all || self.is_internet;
        !is_named && self.nets.is_empty() && self.nodes.is_empty()
    }

    /// Whether it means an address of this node.
    pub fn has(&self, place: usize, address: &IpAddr) -> bool {
        self.is_any
            || self.is_all
            || self.nodes.contains(place)
            || self.nets.iter().any(|net| net.contains(address))
    }
}

/// What remains of a network: its halves, as often as the other is in one.
fn without(net: &IpNet, gone: &IpNet) -> Vec<IpNet> {
    if gone.contains(net) {
        return Vec::new();
    }
    if !net.contains(gone) {
        return vec![*net];
    }
    let mut remain = Vec::new();
    for length in net.prefix_len() + 1..=gone.prefix_len() {
        remain.extend(sibling(gone, length));
    }
    remain
}

/// The network of this length beside the one that has `of`.
fn sibling(of: &IpNet, length: u8) -> Option<IpNet> {
    match of {
        IpNet::V4(net) => {
            let flipped = net.network().to_bits() ^ 1_u32.checked_shl(32 - u32::from(length))?;
            Ipv4Net::new(flipped.into(), length).ok().map(|net| IpNet::V4(net.trunc()))
        }
        IpNet::V6(net) => {
            let flipped = net.network().to_bits() ^ 1_u128.checked_shl(128 - u32::from(length))?;
            Ipv6Net::new(flipped.into(), length).ok().map(|net| IpNet::V6(net.trunc()))
        }
    }
}
