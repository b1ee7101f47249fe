//! Compiles a policy for a network into edges from sets of nodes to sets of nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use serde_json::Value;
use tailnet::{map_messages::CapMap, raw_json::Json};

use crate::{
    alias::{ANY_PORT, Alias, Autogroup},
    attributes::Attributed,
    model::{Grant, Packets, Policy},
    nodes::{Node, Nodes},
    resolve::{Names, Resolved},
    set::NodeSet,
    ssh::SshEdge,
};

/// A policy, resolved for the nodes of a network.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) edges: Vec<Edge>,
    /// Indexes of the edges that can make routes of a router visible to a node.
    pub(crate) route_edges: Vec<usize>,
    pub(crate) ssh: Vec<SshEdge>,
    pub(crate) attributed: Attributed,
}

/// The position of an edge: edges are sorted by it. An edge of the same rule for the same user has the
/// same key, whatever the nodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EdgeKey {
    grant: usize,
    /// For autogroup:self, the user that owns sources and targets.
    user: Option<u64>,
    number: usize,
}

/// A permission of sources at targets.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// The sources in the form of filters.
    pub texts: Arc<[String]>,
    /// Nodes that are sources, or that route to sources.
    pub sources: NodeSet,
    /// Networks that are sources. `None` if all networks are.
    pub behind: Option<Vec<IpNet>>,
    /// Nodes with a rule from this edge in their filter.
    pub targets: NodeSet,
    pub key: EdgeKey,
    /// Edges with the same value are one rule of a filter.
    pub rule: EdgeKey,
    /// The last possible position of that rule: the key of the first edge of the rule, even if that edge has
    /// other targets. Edges with `via` do not count: they apply to their routers only. (Recorded.)
    pub first: Option<EdgeKey>,
    pub kind: EdgeKind,
    /// The sources as JSON; set when a filter with them is first written.
    pub written: OnceLock<Arc<str>>,
}

impl Edge {
    fn has_networks(&self) -> bool {
        let is_behind = self.behind.as_ref().is_none_or(|nets| !nets.is_empty());
        is_behind
            || match &self.kind {
                EdgeKind::Packets { to, .. } => {
                    to.iter().any(|target| !matches!(target, Target::Nodes(_)))
                }
                EdgeKind::Capabilities { .. } => false,
            }
    }

    pub(crate) fn sources_json(&self) -> Arc<str> {
        let write = || serde_json::json!(self.texts.as_ref()).to_string().into();
        Arc::clone(self.written.get_or_init(write))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum EdgeKind {
    Packets { to: Vec<Target>, packets: Packets, is_via: bool },
    Capabilities { to: Vec<Resolved>, capabilities: CapMap },
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// `*`: every destination.
    Any,
    /// The internet, through exit nodes.
    Internet,
    /// Addresses of nodes.
    Nodes(NodeSet),
    Net(IpNet),
}

/// Capabilities that imply another one, which the target has at the source.
const COMPANIONS: [(&str, &str); 2] = [
    ("tailscale.com/cap/drive", "tailscale.com/cap/drive-sharer"),
    ("tailscale.com/cap/relay", "tailscale.com/cap/relay-target"),
];

impl Policy {
    /// Resolves all names, and makes edges of each rule.
    pub fn compile(&self, nodes: &Nodes) -> Compiled {
        self.compile_shared(Arc::new(nodes.clone()))
    }

    /// Like [`Policy::compile`], for shared nodes.
    pub fn compile_shared(&self, nodes: Arc<Nodes>) -> Compiled {
        let names = Names { policy: self, nodes: &nodes };
        let mut edges = Vec::new();
        if self.is_open {
            edges.push(allow_all(names));
        }
        let mut lists = Vec::new();
        for (index, grant) in self.grants.iter().enumerate() {
            let key = EdgeKey { grant: index, ..EdgeKey::default() };
            let (edges, lists) = (&mut edges, &mut lists);
            Compiler { names, grant, key, edges, lists }.compile_grant();
        }
        group(&mut edges);
        let route_edges = edges.iter().enumerate().filter(|(_, edge)| edge.has_networks());
        let route_edges = route_edges.map(|(index, _)| index).collect();
        let ssh = self.ssh.iter().map(|rule| SshEdge::compile(names, rule)).collect();
        let attributed = Attributed::compile(names);
        Compiled { nodes, edges, route_edges, ssh, attributed }
    }
}

/// Groups edges with the same sources and protocol into one rule.
fn group(edges: &mut [Edge]) {
    let mut rules: BTreeMap<_, (EdgeKey, Option<EdgeKey>)> = BTreeMap::new();
    for edge in edges.iter_mut() {
        edge.rule = edge.key;
        if let EdgeKind::Packets { packets, is_via, .. } = &edge.kind {
            let of = (edge.texts.clone(), packets.protocol);
            let (rule, first) = rules.entry(of).or_insert((edge.key, None));
            edge.rule = *rule;
            if !is_via {
                first.get_or_insert(edge.key);
            }
        }
    }
    let firsts: BTreeMap<EdgeKey, Option<EdgeKey>> = rules.into_values().collect();
    for edge in edges {
        edge.first = firsts.get(&edge.rule).copied().flatten();
    }
}

fn allow_all(names: Names<'_>) -> Edge {
    let all = NodeSet::all(names.nodes.nodes.len());
    Edge {
        texts: names.sources(&Resolved { is_any: true, ..Resolved::default() }).into(),
        sources: all.clone(),
        behind: None,
        targets: all,
        key: EdgeKey::default(),
        rule: EdgeKey::default(),
        first: None,
        kind: EdgeKind::Packets {
            to: vec![Target::Any],
            packets: Packets { protocol: None, ports: vec![ANY_PORT] },
            is_via: false,
        },
        written: OnceLock::new(),
    }
}

struct Compiler<'a> {
    names: Names<'a>,
    grant: &'a Grant,
    /// The key of the next edge.
    key: EdgeKey,
    edges: &'a mut Vec<Edge>,
    /// Texts of sources, which several rules share.
    lists: &'a mut Vec<(Resolved, Arc<[String]>)>,
}

impl Compiler<'_> {
    fn compile_grant(&mut self) {
        if self.grant.sources.is_empty() || self.grant.targets.is_empty() {
            return;
        }
        let sources = self.names.resolve(&self.grant.sources);
        let is_self = |target: &&Alias| target.is(Autogroup::Itself);
        let targets: Vec<&Alias> =
            self.grant.targets.iter().filter(|target| !is_self(target)).collect();
        if !self.grant.via.is_empty() {
            return self.via_edges(&sources, &targets);
        }
        if !targets.is_empty() {
            self.node_edges(&sources, &targets);
        }
        if targets.len() < self.grant.targets.len() {
            self.self_edges(&sources);
        }
    }

    fn push_edge(&mut self, sources: &Resolved, targets: NodeSet, kind: EdgeKind) {
        let texts = self.texts(sources);
        let mut from = self.names.members(sources);
        if !sources.nets.is_empty() {
            for (index, node) in self.nodes() {
                if sources.nets.iter().any(|net| node.routes_to(net)) {
                    from.insert(index);
                }
            }
        }
        let is_all = sources.is_any || sources.is_all;
        let behind = (!is_all).then(|| sources.nets.clone());
        let (sources, written, key) = (from, OnceLock::new(), self.key);
        let (rule, first) = (key, None);
        self.edges.push(Edge { texts, sources, behind, targets, key, rule, first, kind, written });
        self.key.number += 1;
    }

    fn texts(&mut self, sources: &Resolved) -> Arc<[String]> {
        // Each user has its own sources, with few nodes: sharing would not help.
        if self.key.user.is_some() {
            return self.names.sources(sources).into();
        }
        if let Some((_, texts)) = self.lists.iter().find(|(of, _)| of == sources) {
            return Arc::clone(texts);
        }
        let texts: Arc<[String]> = self.names.sources(sources).into();
        self.lists.push((sources.clone(), Arc::clone(&texts)));
        texts
    }

    fn nodes(&self) -> impl Iterator<Item = (usize, &Node)> + use<'_> {
        self.names.nodes.nodes.iter().enumerate()
    }

    fn node_edges(&mut self, sources: &Resolved, targets: &[&Alias]) {
        if !sources.is_empty() {
            let to: Vec<Target> = targets.iter().flat_map(|alias| self.targets_of(alias)).collect();
            let reached = self.reached(&to);
            for packets in &self.grant.packets {
                let (to, packets) = (to.clone(), packets.clone());
                let kind = EdgeKind::Packets { to, packets, is_via: false };
                self.push_edge(sources, reached.clone(), kind);
            }
        }
        self.key.number = self.grant.packets.len();
        let Some(capabilities) = &self.grant.capabilities else { return };
        let to = targets.iter().map(|alias| self.names.resolve([*alias])).collect();
        self.capability_edges(sources, to, capabilities);
    }

    /// Adds the edges of capabilities, and those of their companions in the opposite direction.
    fn capability_edges(
        &mut self,
        sources: &Resolved,
        to: Vec<Resolved>,
        capabilities: &BTreeMap<String, Value>,
    ) {
        let mut reached = NodeSet::default();
        let mut all = Resolved::default();
        for one in &to {
            reached.union_with(&self.names.members(one));
            all.nodes.union_with(&one.nodes);
            all.nets.extend(&one.nets);
            all.is_any |= one.is_any;
        }
        let texts = capabilities.iter().map(|(name, values)| (name.clone(), values.into()));
        let kind = EdgeKind::Capabilities { to, capabilities: texts.collect() };
        self.push_edge(sources, reached, kind);
        for (name, companion) in COMPANIONS {
            if capabilities.contains_key(name) {
                let capabilities = CapMap::from([(companion.to_owned(), Json::default())]);
                let kind = EdgeKind::Capabilities { to: vec![sources.clone()], capabilities };
                let reached = self.names.members(sources);
                self.push_edge(&all, reached, kind);
            }
        }
    }

    fn targets_of(&self, alias: &Alias) -> Vec<Target> {
        let resolved = self.names.resolve([alias]);
        if resolved.is_any {
            return vec![Target::Any];
        }
        if resolved.is_internet {
            return vec![Target::Internet];
        }
        let nets = resolved.nets.iter().copied().map(Target::Net);
        let nodes = (!resolved.nodes.is_empty()).then_some(Target::Nodes(resolved.nodes));
        nets.chain(nodes).collect()
    }

    /// The nodes that receive packets to these targets.
    fn reached(&self, to: &[Target]) -> NodeSet {
        let nodes = &self.names.nodes.nodes;
        let arrives = |index: usize, node: &Node| {
            to.iter().any(|target| match target {
                Target::Any => true,
                Target::Internet => node.is_exit(),
                Target::Net(net) => node.is_in(net) || node.routes_to(net),
                Target::Nodes(set) => set.contains(index) || routes_to_one(nodes, node, set),
            })
        };
        self.nodes().filter(|&(index, node)| arrives(index, node)).map(|(index, _)| index).collect()
    }

    /// Adds edges for the routed networks of routers with one of the `via` tags.
    fn via_edges(&mut self, sources: &Resolved, targets: &[&Alias]) {
        if sources.is_empty() {
            return;
        }
        let to: Vec<Target> = targets.iter().flat_map(|alias| self.targets_of(alias)).collect();
        let is_router = |node: &Node| {
            node.tags.iter().any(|tag| self.grant.via.contains(tag))
                && to.iter().any(|target| match target {
                    Target::Net(net) => node.routes_to(net),
                    Target::Internet => node.is_exit(),
                    Target::Any | Target::Nodes(_) => false,
                })
        };
        let reached: NodeSet =
            self.nodes().filter(|(_, node)| is_router(node)).map(|(index, _)| index).collect();
        for packets in &self.grant.packets {
            let (to, packets) = (to.clone(), packets.clone());
            let kind = EdgeKind::Packets { to, packets, is_via: true };
            self.push_edge(sources, reached.clone(), kind);
        }
        if self.grant.capabilities.is_some() {
            // A router grants no capabilities, but its networks are visible. (Recorded.)
            let packets = Packets { protocol: None, ports: Vec::new() };
            self.push_edge(sources, reached, EdgeKind::Packets { to, packets, is_via: true });
        }
    }

    /// Adds edges among the nodes of each user.
    fn self_edges(&mut self, sources: &Resolved) {
        let members = self.names.members(sources);
        let mut users: BTreeMap<u64, NodeSet> = BTreeMap::new();
        for (index, node) in self.nodes().filter(|(_, node)| node.is_personal()) {
            if let Some(user) = node.user {
                users.entry(user).or_default().insert(index);
            }
        }
        for (user, nodes) in users {
            self.key = EdgeKey { user: Some(user), number: 0, ..self.key };
            let sources = Resolved { nodes: members.intersection(&nodes), ..Resolved::default() };
            if sources.is_empty() {
                continue;
            }
            for packets in &self.grant.packets {
                let to = vec![Target::Nodes(nodes.clone())];
                let kind = EdgeKind::Packets { to, packets: packets.clone(), is_via: false };
                self.push_edge(&sources, nodes.clone(), kind);
            }
            if let Some(capabilities) = &self.grant.capabilities {
                let to = vec![Resolved { nodes, ..Resolved::default() }];
                self.capability_edges(&sources, to, capabilities);
            }
        }
    }
}

/// Whether a router routes an address of one of these nodes.
pub(crate) fn routes_to_one(nodes: &[Node], router: &Node, set: &NodeSet) -> bool {
    router.subnets().any(|net| set.iter().any(|index| nodes[index].is_in(net)))
}
