//! The packet filter, the peers and the visible routes of a node.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use ipnet::IpNet;
use serde_json::Value;
use tailnet::map_messages::{CapGrant, Destination, FilterRule, PortRange};

use crate::{
    alias::text,
    compile::{Compiled, Edge, EdgeKey, EdgeKind, Target},
    nodes::overlaps,
    set::NodeSet,
};

/// The internet without private addresses, link-local addresses and those of Tailscale. (Recorded.)
pub(crate) const INTERNET: [&str; 7] = [
    "0.0.0.0-9.255.255.255",
    "11.0.0.0-100.63.255.255",
    "100.128.0.0-169.253.255.255",
    "169.255.0.0-172.15.255.255",
    "172.32.0.0-192.167.255.255",
    "192.169.0.0-255.255.255.255",
    "2000::-3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];

impl Compiled {
    /// The rules of a node's filter, in the order of the policy. Rules with the same sources and protocol are
    /// merged.
    pub fn filter(&self, node: usize) -> Vec<FilterRule> {
        let with_sources =
            |(edge, rule): (&Edge, _)| FilterRule { sources: edge.texts.to_vec(), ..rule };
        self.rules(node).map(with_sources).collect()
    }

    /// The rules as Tailscale's JSON, each in two pieces: the list of sources, which is shared by all nodes, and
    /// the text after it.
    pub fn filter_pieces(&self, node: usize) -> Vec<(Arc<str>, String)> {
        let pieces = self.rules(node).map(|(edge, rule)| {
            let mut fields = to_json(&[rule]);
            let fields = fields[0].as_object_mut().expect("a rule is an object");
            fields.remove("SrcIPs");
            let rest = Value::Object(std::mem::take(fields)).to_string();
            // A rule has destinations or grants: something follows.
            (edge.sources_json(), format!(",{}", &rest[1..]))
        });
        pieces.collect()
    }

    /// The rules without sources, each with the edge that has them.
    fn rules(&self, node: usize) -> impl Iterator<Item = (&Edge, FilterRule)> {
        let mut rules: BTreeMap<EdgeKey, (&Edge, FilterRule)> = BTreeMap::new();
        let mut positions: BTreeMap<EdgeKey, EdgeKey> = BTreeMap::new();
        for edge in self.edges.iter().filter(|edge| edge.targets.contains(node)) {
            let Some(rule) = self.rule(edge, node) else { continue };
            let at_the_latest = || edge.first.map_or(edge.key, |first| first.min(edge.key));
            let position = *positions.entry(edge.rule).or_insert_with(at_the_latest);
            match rules.entry(position) {
                Entry::Occupied(mut first) => {
                    first.get_mut().1.destinations.extend(rule.destinations);
                }
                Entry::Vacant(empty) => drop(empty.insert((edge, rule))),
            }
        }
        rules.into_values()
    }

    /// Whether two nodes are peers: one of them may reach the other.
    pub fn sees(&self, one: usize, other: usize) -> bool {
        let leads =
            |edge: &Edge, from, to| edge.sources.contains(from) && edge.targets.contains(to);
        one != other
            && self.edges.iter().any(|edge| leads(edge, one, other) || leads(edge, other, one))
    }

    /// The nodes that this node may reach, and those that may reach it.
    pub fn peers(&self, node: usize) -> NodeSet {
        let mut peers = NodeSet::default();
        for edge in &self.edges {
            if edge.sources.contains(node) {
                peers.union_with(&edge.targets);
            }
            if edge.targets.contains(node) {
                peers.union_with(&edge.sources);
            }
        }
        peers.remove(node);
        peers
    }

    /// The networks of a router that are visible to a node which sees the router: networks that the node may
    /// reach, networks that may reach the node (for the answers), and networks that the node routes too. The
    /// policy does not choose between several routers of a network.
    pub fn routes(&self, node: usize, router: usize) -> Vec<IpNet> {
        let own: Vec<&IpNet> = self.nodes.nodes[node].subnets().collect();
        let routes = self.nodes.nodes[router].routes.iter().copied();
        routes
            .filter(|route| {
                let mut edges = self.route_edges.iter().map(|&index| &self.edges[index]);
                own.contains(&route) || edges.any(|edge| opens_route(edge, node, router, route))
            })
            .collect()
    }

    fn rule(&self, edge: &Edge, node: usize) -> Option<FilterRule> {
        let mut rule = FilterRule::default();
        match &edge.kind {
            EdgeKind::Packets { to, packets, is_via } => {
                rule.protocols.extend(packets.protocol.map(i32::from));
                for target in to {
                    let addresses = self.addresses(target, node, *is_via);
                    rule.destinations.extend(addresses.into_iter().flat_map(|addresses| {
                        packets.ports.iter().map(move |&ports| destination(&addresses, ports))
                    }));
                }
            }
            EdgeKind::Capabilities { to, capabilities } => {
                for resolved in to {
                    let own = self.nodes.nodes[node].addresses.iter();
                    let own = own.filter(|address| resolved.has(node, address));
                    let destinations: Vec<String> =
                        own.map(|&address| IpNet::from(address).to_string()).collect();
                    if destinations.is_empty() {
                        continue;
                    }
                    let cap_map = capabilities.clone();
                    rule.grants.push(CapGrant { destinations, caps: Vec::new(), cap_map });
                }
            }
        }
        (!rule.destinations.is_empty() || !rule.grants.is_empty()).then_some(rule)
    }

    /// The addresses of a target that are at this node.
    fn addresses(&self, target: &Target, index: usize, is_via: bool) -> Vec<String> {
        let nodes = &self.nodes.nodes;
        let node = &nodes[index];
        match target {
            Target::Any if !is_via => vec!["*".into()],
            Target::Internet if node.is_exit() => INTERNET.map(str::to_owned).to_vec(),
            Target::Net(net) if node.routes_to(net) || (!is_via && node.is_in(net)) => {
                vec![text(net)]
            }
            Target::Nodes(set) if !is_via => {
                let own = set.contains(index).then_some(&node.addresses);
                let mut addresses: Vec<_> = own.into_iter().flatten().collect();
                if node.subnets().next().is_some() {
                    let others = set.iter().filter(|&other| other != index);
                    let routed = others.flat_map(|other| &nodes[other].addresses);
                    addresses
                        .extend(routed.filter(|&to| node.subnets().any(|net| net.contains(to))));
                }
                addresses.into_iter().map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn opens_route(edge: &Edge, node: usize, router: usize, route: &IpNet) -> bool {
    let is_exit = route.prefix_len() == 0;
    let is_there = |target: &Target| match target {
        Target::Any => true,
        Target::Internet => is_exit,
        Target::Net(net) => !is_exit && overlaps(net, route),
        Target::Nodes(_) => false,
    };
    let leads_out = || match &edge.kind {
        EdgeKind::Packets { to, .. } => to.iter().any(is_there),
        EdgeKind::Capabilities { .. } => false,
    };
    let leads_back = || match &edge.behind {
        _ if is_exit => false,
        Some(nets) => nets.iter().any(|net| overlaps(net, route)),
        None => true,
    };
    (edge.sources.contains(node) && edge.targets.contains(router) && leads_out())
        || (edge.targets.contains(node) && leads_back())
}

fn destination(addresses: &str, ports: PortRange) -> Destination {
    Destination { addresses: addresses.to_owned(), bits: None, ports }
}

/// Tailscale's JSON of rules, without empty fields.
pub fn to_json(rules: &[FilterRule]) -> Value {
    let mut value = serde_json::json!(rules);
    prune(&mut value);
    value
}

/// Removes empty fields of rules, grants and destinations. Capabilities are not changed.
fn prune(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Object(fields) => {
            let is_empty =
                |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            fields.retain(|key, value| key == "SrcIPs" || !is_empty(value));
            for (key, value) in fields.iter_mut() {
                if key != "CapMap" {
                    prune(value);
                }
            }
        }
        _ => {}
    }
}
