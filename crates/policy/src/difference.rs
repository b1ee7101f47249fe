//! The difference of two policies for people: one line for each pair of nodes and their ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    rc::Rc,
};

use tailnet::map_messages::PortRange;

use crate::{
    alias::{ANY_PORT, ICMP, ICMP6, TCP, UDP, has_ports, text},
    checks::has,
    compile::{Compiled, Edge, EdgeKind, Target},
    nodes::{Node, Nodes},
    set::NodeSet,
};

/// The difference of two policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Lines, sorted by target and then by source.
    pub lines: Vec<Line>,
    /// The number of further lines.
    pub left_off: usize,
}

/// A source that reaches a target by one of the two policies only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether the later policy allows it; else the earlier one does.
    pub is_added: bool,
    /// A node, or a network that a node routes.
    pub source: String,
    /// A node or network with ports and protocol, like `db:5432/tcp`. TCP and UDP if no protocol is given.
    pub target: String,
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_added { '+' } else { '-' };
        write!(out, "{sign} {} -> {}", self.source, self.target)
    }
}

impl Compiled {
    /// Returns the difference from an earlier policy for the same nodes, with at most `most` lines.
    pub fn difference(&self, before: &Self, most: usize) -> Difference {
        let mut sources = Sources::new(&self.nodes);
        let mut targets: BTreeMap<String, [Vec<Piece>; 2]> = BTreeMap::new();
        for (which, compiled) in [before, self].into_iter().enumerate() {
            for edge in &compiled.edges {
                compiled.add_pieces(edge, &mut sources, |target, piece| {
                    targets.entry(target).or_default()[which].push(piece);
                });
            }
        }
        let mut difference = Difference::default();
        for (target, pieces) in targets {
            for ((source, is_added), open) in differing(&pieces) {
                for target in format_targets(&target, &open) {
                    if difference.lines.len() == most {
                        difference.left_off += 1;
                        continue;
                    }
                    let source = sources.names[source].clone();
                    difference.lines.push(Line { is_added, source, target });
                }
            }
        }
        difference
    }

    fn add_pieces(
        &self,
        edge: &Edge,
        sources: &mut Sources<'_>,
        mut add: impl FnMut(String, Piece),
    ) {
        let EdgeKind::Packets { to, packets, is_via } = &edge.kind else { return };
        let from = Rc::new(sources.of(edge));
        let all = [TCP, UDP, ICMP];
        let protocols = packets.protocol.as_ref().map_or(&all[..], std::slice::from_ref);
        for index in edge.targets.iter() {
            let names: BTreeSet<String> =
                to.iter().flat_map(|target| self.names_at(target, index, *is_via)).collect();
            for name in names {
                for (&protocol, &ports) in
                    protocols.iter().flat_map(|one| packets.ports.iter().map(move |at| (one, at)))
                {
                    let ports = if has_ports(Some(protocol)) { ports } else { ANY_PORT };
                    add(name.clone(), Piece { protocol, ports, from: Rc::clone(&from) });
                }
            }
        }
    }

    /// The names of the parts of a target that are at a node.
    fn names_at(&self, target: &Target, index: usize, is_via: bool) -> Vec<String> {
        let node = &self.nodes.nodes[index];
        let mut names = Vec::new();
        let (is_own, routed) = match target {
            Target::Any => (true, node.subnets().map(text).collect()),
            Target::Internet => (false, Vec::new()),
            Target::Net(net) if node.routes_to(net) => (node.is_in(net), vec![text(net)]),
            Target::Net(net) => (node.is_in(net), Vec::new()),
            Target::Nodes(set) => (set.contains(index), Vec::new()),
        };
        if is_own && !is_via && !node.addresses.is_empty() {
            names.push(node.name.clone());
        }
        names.extend(routed);
        if matches!(target, Target::Any | Target::Internet) && node.is_exit() {
            names.push("internet".into());
        }
        names
    }
}

/// Ports that some sources reach.
struct Piece {
    protocol: u8,
    ports: PortRange,
    from: Rc<NodeSet>,
}

/// Sources by number: nodes by their indexes, then networks behind nodes.
struct Sources<'a> {
    nodes: &'a Nodes,
    names: Vec<String>,
    others: BTreeMap<String, usize>,
}

impl<'a> Sources<'a> {
    fn new(nodes: &'a Nodes) -> Self {
        let names = nodes.nodes.iter().map(|node| node.name.clone()).collect();
        Self { nodes, names, others: BTreeMap::new() }
    }

    fn of(&mut self, edge: &Edge) -> NodeSet {
        let nodes = &self.nodes.nodes;
        // A router is a source only by its own addresses, and not by a network that it routes.
        let is_one = |node: &Node| {
            let own = |text: &String| node.addresses.iter().any(|&own| has(text, &own.into()));
            !node.addresses.is_empty()
                && (node.subnets().next().is_none() || edge.texts.iter().any(own))
        };
        let mut from: NodeSet = edge.sources.iter().filter(|&at| is_one(&nodes[at])).collect();
        let nets = edge.behind.iter().flatten();
        let is_elsewhere = |net: &&_| !nodes.iter().any(|node| node.is_in(net));
        let mut others: Vec<String> = nets.filter(is_elsewhere).map(text).collect();
        if edge.texts.iter().any(|text| text == "*") {
            others.push("anyone".into());
        }
        for other in others {
            let names = &mut self.names;
            let index = *self.others.entry(other).or_insert_with_key(|other| {
                names.push(other.clone());
                names.len() - 1
            });
            from.insert(index);
        }
        from
    }
}

/// Open ports of each protocol.
type Open = BTreeMap<u8, Vec<PortRange>>;

fn differing([before, now]: &[Vec<Piece>; 2]) -> BTreeMap<(usize, bool), Open> {
    let mut found: BTreeMap<(usize, bool), Open> = BTreeMap::new();
    let protocols: BTreeSet<u8> = before.iter().chain(now).map(|piece| piece.protocol).collect();
    for protocol in protocols {
        let own = |pieces: &[Piece], at: u32| {
            let mut from = NodeSet::default();
            let is_open = |piece: &&Piece| {
                let ports = u32::from(piece.ports.first)..=u32::from(piece.ports.last);
                piece.protocol == protocol && ports.contains(&at)
            };
            pieces.iter().filter(is_open).for_each(|piece| from.union_with(&piece.from));
            from
        };
        let pieces = before.iter().chain(now).filter(|piece| piece.protocol == protocol);
        let mut edges: Vec<u32> = pieces
            .flat_map(|piece| [u32::from(piece.ports.first), u32::from(piece.ports.last) + 1])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        for edge in edges.windows(2) {
            let (was, is) = (own(before, edge[0]), own(now, edge[0]));
            let ports = PortRange { first: port(edge[0]), last: port(edge[1] - 1) };
            for source in was.symmetric_difference(&is).iter() {
                let open = found.entry((source, is.contains(source))).or_default();
                push(open.entry(protocol).or_default(), ports);
            }
        }
    }
    found
}

fn port(number: u32) -> u16 {
    u16::try_from(number).expect("it is at most the last port of a range")
}

/// Appends ports that follow all others.
fn push(open: &mut Vec<PortRange>, ports: PortRange) {
    match open.last_mut().filter(|last| u32::from(last.last) + 1 == u32::from(ports.first)) {
        Some(last) => last.last = ports.last,
        None => open.push(ports),
    }
}

/// Formats the target with each of these ports.
fn format_targets(target: &str, open: &Open) -> Vec<String> {
    let ranges = |protocol| open.get(&protocol).map_or(&[][..], Vec::as_slice);
    let (tcp, udp) = (ranges(TCP), ranges(UDP));
    let both: Vec<&PortRange> = tcp.iter().filter(|range| udp.contains(range)).collect();
    let name = if target.contains(':') { format!("[{target}]") } else { target.to_owned() };
    let with = |range: &PortRange, protocol: &str| match (range.first, range.last) {
        (0, u16::MAX) => format!("{name}:*{protocol}"),
        (first, last) if first == last => format!("{name}:{first}{protocol}"),
        (first, last) => format!("{name}:{first}-{last}{protocol}"),
    };
    let mut texts: Vec<String> = both.iter().map(|range| with(range, "")).collect();
    for (protocol, ranges) in open {
        match *protocol {
            TCP | UDP => {
                let protocol = if *protocol == TCP { "/tcp" } else { "/udp" };
                let alone = ranges.iter().filter(|range| !both.contains(range));
                texts.extend(alone.map(|range| with(range, protocol)));
            }
            // A source that reaches a node by TCP and UDP may ping it.
            ICMP if !both.is_empty() => {}
            ICMP => texts.push(format!("{name}/icmp")),
            ICMP6 => texts.push(format!("{name}/ipv6-icmp")),
            other => texts.extend(ranges.iter().map(|range| match has_ports(Some(other)) {
                true => with(range, &format!("/{other}")),
                false => format!("{name}/{other}"),
            })),
        }
    }
    texts
}
