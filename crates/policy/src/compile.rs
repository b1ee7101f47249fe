//! A policy for a network: edges from sets of nodes to sets of nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use ipnet::IpNet;
use serde_json::Value;
use tailnet::messages::{CapMap, Json};

use crate::{
    alias::{ANY_PORT, Alias, Autogroup},
    attributes::Attributed,
    model::{Grant, Packets, Policy},
    nodes::{Node, Nodes},
    resolve::{Names, Resolved},
    set::NodeSet,
    ssh::SshEdge,
};

/// What a policy means for these nodes.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) edges: Vec<Edge>,
    /// Of these, those by which a node may be told of networks.
    pub(crate) route_edges: Vec<usize>,
    pub(crate) ssh: Vec<SshEdge>,
    pub(crate) attributed: Attributed,
}

/// Where an edge stands among all: they are in this order. An edge of the same rule, for the same
/// user, has the same key whatever the nodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EdgeKey {
    grant: usize,
    /// Among whose nodes alone it is.
    user: Option<u64>,
    number: usize,
}

/// One thing that sources may do to targets.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    /// As filters write them.
    pub texts: Arc<[String]>,
    /// Nodes that are sources, or have sources behind them.
    pub sources: NodeSet,
    /// Networks that are sources; none where all are.
    pub behind: Option<Vec<IpNet>>,
    /// Nodes whose filter has a rule of this edge.
    pub targets: NodeSet,
    /// Where it stands.
    pub key: EdgeKey,
    /// Edges with the same one are one rule.
    pub rule: EdgeKey,
    /// Where that rule stands at the latest: at the place of the first of those edges, even if its
    /// targets are others; but via's edges are for their routers alone. (Recorded.)
    pub first: Option<EdgeKey>,
    pub kind: EdgeKind,
    /// The sources as JSON, once a filter with them was written.
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

    pub fn sources_json(&self) -> Arc<str> {
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
    /// `*`: whatever arrives.
    Any,
    /// The internet, by nodes that are the way to it.
    Internet,
    /// Nodes' own addresses.
    Nodes(NodeSet),
    Net(IpNet),
}

/// Capabilities that entail another one, of their target at their source.
const COMPANIONS: [(&str, &str); 2] = [
    ("tailscale.com/cap/drive", "tailscale.com/cap/drive-sharer"),
    ("tailscale.com/cap/relay", "tailscale.com/cap/relay-target"),
];

impl Policy {
    /// Resolves all names, and makes an edge of each rule.
    pub fn compile(&self, nodes: &Nodes) -> Compiled {
        self.compile_shared(Arc::new(nodes.clone()))
    }

    /// The same, for nodes that others have too.
    pub fn compile_shared(&self, nodes: Arc<Nodes>) -> Compiled {
        let names = Names { policy: self, nodes: &nodes };
        let mut edges = Vec::new();
        if self.is_open {
            edges.push(everything(names));
        }
        let mut lists = Vec::new();
        for (index, grant) in self.grants.iter().enumerate() {
            let key = EdgeKey { grant: index, ..EdgeKey::default() };
            let (edges, lists) = (&mut edges, &mut lists);
            Compiler { names, grant, key, edges, lists }.grant();
        }
        group(&mut edges);
        let route_edges = edges.iter().enumerate().filter(|(_, edge)| edge.has_networks());
        let route_edges = route_edges.map(|(index, _)| index).collect();
        let ssh = self.ssh.iter().map(|rule| SshEdge::compile(names, rule)).collect();
        let attributed = Attributed::compile(names);
        Compiled { nodes, edges, route_edges, ssh, attributed }
    }
}

/// Edges of the same sources and protocol are one rule.
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

fn everything(names: Names<'_>) -> Edge {
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
    /// Of the next edge.
    key: EdgeKey,
    edges: &'a mut Vec<Edge>,
    /// What sources that several rules have were written as.
    lists: &'a mut Vec<(Resolved, Arc<[String]>)>,
}

impl Compiler<'_> {
    fn grant(&mut self) {
        if self.grant.sources.is_empty() || self.grant.targets.is_empty() {
            return;
        }
        let sources = self.names.resolve(&self.grant.sources);
        let is_self = |target: &&Alias| target.is(Autogroup::Itself);
        let targets: Vec<&Alias> =
            self.grant.targets.iter().filter(|target| !is_self(target)).collect();
        if !self.grant.via.is_empty() {
            return self.via(&sources, &targets);
        }
        if !targets.is_empty() {
            self.others(&sources, &targets);
        }
        if targets.len() < self.grant.targets.len() {
            self.own(&sources);
        }
    }

    fn edge(&mut self, sources: &Resolved, targets: NodeSet, kind: EdgeKind) {
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
        // There is one for each user, of few nodes.
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

    fn others(&mut self, sources: &Resolved, targets: &[&Alias]) {
        if !sources.is_empty() {
            let to: Vec<Target> = targets.iter().flat_map(|alias| self.targets_of(alias)).collect();
            let reached = self.reached(&to);
            for packets in &self.grant.packets {
                let (to, packets) = (to.clone(), packets.clone());
                let kind = EdgeKind::Packets { to, packets, is_via: false };
                self.edge(sources, reached.clone(), kind);
            }
        }
        self.key.number = self.grant.packets.len();
        let Some(capabilities) = &self.grant.capabilities else { return };
        let to = targets.iter().map(|alias| self.names.resolve([*alias])).collect();
        self.capabilities(sources, to, capabilities);
    }

    /// Grants at each of the targets; and the companions, the other way.
    fn capabilities(
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
        self.edge(sources, reached, kind);
        for (name, companion) in COMPANIONS {
            if capabilities.contains_key(name) {
                let capabilities = CapMap::from([(companion.to_owned(), Json::default())]);
                let kind = EdgeKind::Capabilities { to: vec![sources.clone()], capabilities };
                let reached = self.names.members(sources);
                self.edge(&all, reached, kind);
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

    /// The nodes at which packets to there arrive.
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

    /// Only routers with one of the tags, and only for what they route.
    fn via(&mut self, sources: &Resolved, targets: &[&Alias]) {
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
            self.edge(sources, reached.clone(), kind);
        }
        if self.grant.capabilities.is_some() {
            // Nobody is granted anything at a router, but its networks are told of. (Recorded.)
            let packets = Packets { protocol: None, ports: Vec::new() };
            self.edge(sources, reached, EdgeKind::Packets { to, packets, is_via: true });
        }
    }

    /// Each user's nodes among themselves.
    fn own(&mut self, sources: &Resolved) {
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
                self.edge(&sources, nodes.clone(), kind);
            }
            if let Some(capabilities) = &self.grant.capabilities {
                let to = vec![Resolved { nodes, ..Resolved::default() }];
                self.capabilities(&sources, to, capabilities);
            }
        }
    }
}

/// Whether an address of one of them is in what this one routes.
pub(crate) fn routes_to_one(nodes: &[Node], router: &Node, set: &NodeSet) -> bool {
    router.subnets().any(|net| set.iter().any(|index| nodes[index].is_in(net)))
}
