//! Compiles the coordinator's filter rules to the policy for packets from peers.
//!
//! ```text
//!   own addresses, services, offered networks ──► local ────────────────┐
//!   FilterRule ──► addresses ──► AddressSet ── minus jailed peers ──► Rule ──► Policy
//!         │             cap: ──► addresses of peers with the capability ──► Rule
//!         └──► grants ──► Grants: capabilities of peers other than sending packets
//! ```
//!
//! Semantics: tailscale `wgengine/filter/tailcfg.go` and `match.go`, `ipn/ipnlocal/local.go`
//! (`updateFilterLocked`). Unreadable parts accept nothing and are reported. In Tailscale a jailed
//! peer has a separate filter that accepts nothing. Here its addresses are removed from the sources
//! of each rule, which is equivalent, because no other peer may send from them.

mod address_set;
mod grants;
mod jail;
mod local_destinations;
mod rule_addresses;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;
use packet::filter::{AddressRange, Destination, Policy, Rule};
use tailnet::{
    map_messages::{FilterRule, Node},
    tsmp,
};

use self::{
    address_set::AddressSet,
    rule_addresses::{Addresses, parse},
};
pub use self::{
    grants::Grants, local_destinations::service_addresses, rule_addresses::ParseAddressesError,
};

/// The protocols of a rule without protocols: TCP, UDP and ICMP.
const USUAL: [u8; 4] = [6, 17, 1, 58];
/// The protocols with ports: TCP, UDP and SCTP.
const WITH_PORTS: [u8; 3] = [6, 17, 132];
/// The largest table of the data plane for sources, in bits (256 MiB): one bit for each destination
/// in each set of sources.
const MAX_BITS: usize = 1 << 31;
/// The maximum number of address ranges in all rules.
const MAX_RANGES: usize = 1 << 20;
/// The maximum number of reported problems.
const MAX_REPORTED: usize = 32;

/// The input of [`compile`].
#[derive(Clone, Default)]
pub struct Input<'a> {
    /// The rules of all filters, ordered by the filters' names.
    pub rules: Vec<&'a FilterRule>,
    /// This node's addresses.
    pub own: &'a [IpNet],
    /// The addresses of services of this node: [`service_addresses`].
    pub services: &'a [IpAddr],
    /// The networks that this node offers.
    pub advertised: &'a [IpNet],
    /// The addresses of this machine's interfaces with their prefix lengths.
    pub interfaces: &'a [IpNet],
    /// The others.
    pub peers: &'a [Peer<'a>],
    /// Whether all incoming connections are rejected.
    pub shields_up: bool,
}

/// A peer.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// The node.
    pub node: &'a Node,
    /// The accepted source networks of the peer.
    pub allowed_ips: &'a [IpNet],
}

/// The compiled rules.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The policy for packets.
    pub policy: Policy,
    /// The capabilities that peers have.
    pub grants: Grants,
    /// The parts that are not used.
    pub problems: Vec<Problem>,
}

/// A part of the rules that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A source of the rule with this index.
    Source(usize, ParseAddressesError),
    /// A destination of a rule.
    Destination(usize, ParseAddressesError),
    /// A destination of a grant.
    Grant(usize, ParseAddressesError),
    /// A rule has networks in a form that was abandoned in 2020. All rules are ignored.
    OldForm(usize),
    /// A rule accepts packets of a peer with an unsigned key. All rules are ignored.
    Unsigned(usize),
    /// The rules from this index on exceed the limits, and are ignored.
    TooMany(usize),
    /// The services of this node are unreadable.
    Services,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(rule, bad) => write!(f, "rule {rule}: a source: {bad}"),
            Self::Destination(rule, bad) => write!(f, "rule {rule}: a destination: {bad}"),
            Self::Grant(rule, bad) => write!(f, "rule {rule}: a grant: {bad}"),
            Self::OldForm(rule) => {
                write!(f, "rule {rule} has networks in an old form: all rules are ignored")
            }
            Self::Unsigned(rule) => {
                write!(f, "rule {rule} accepts an unsigned peer: all rules are ignored")
            }
            Self::TooMany(rule) => write!(f, "too many rules: those from {rule} on are ignored"),
            Self::Services => f.write_str("the addresses of this node's services cannot be read"),
        }
    }
}

/// Compiles the policy of a node.
pub fn compile(input: &Input<'_>) -> Compiled {
    let local = local_destinations::local(input);
    let policy = Policy {
        local: local.ranges().collect(),
        // The data plane answers every peer, even with shields up. The host does not receive these
        // packets.
        open_protocols: vec![tsmp::PROTOCOL],
        shields_up: input.shields_up,
        ..Policy::default()
    };
    let mut compiled = Compiled { policy, ..Compiled::default() };
    if input.shields_up {
        return compiled;
    }
    let mut problems = Problems::default();
    match read(&input.rules, input.peers, &mut problems) {
        Ok(rules) => {
            let mut writer = Writer {
                jailed: jail::jailed(input.peers),
                by_capability: by_capability(input.peers, &rules),
                local: &local,
                rules: Vec::new(),
                sources: 0,
                destinations: 0,
            };
            let beyond = rules.iter().position(|rule| !writer.write(rule));
            beyond.into_iter().for_each(|rule| problems.push(Problem::TooMany(rule)));
            compiled.policy.rules = writer.rules;
            compiled.grants = Grants::new(&rules, &local, &mut problems);
        }
        Err(invalid) => problems.push(invalid),
    }
    compiled.problems = problems.0;
    compiled
}

/// The first problems.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn push(&mut self, problem: Problem) {
        if self.0.len() < MAX_REPORTED {
            self.0.push(problem);
        }
    }
}

/// A parsed rule.
struct Read<'a> {
    rule: &'a FilterRule,
    protocols: Vec<u8>,
    sources: AddressSet,
    capabilities: Vec<&'a str>,
    destinations: Vec<(AddressRange, RangeInclusive<u16>)>,
}

/// Parses all rules. Some errors in one rule invalidate all rules.
fn read<'a>(
    rules: &[&'a FilterRule],
    peers: &[Peer<'_>],
    problems: &mut Problems,
) -> Result<Vec<Read<'a>>, Problem> {
    let unsigned = peers.iter().filter(|peer| peer.node.unsigned_peer_api_only);
    let unsigned: AddressSet =
        unsigned.flat_map(|peer| peer.node.allowed_ips()).filter_map(range).collect();
    let mut read = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        if !rule.source_bits.is_empty() || rule.destinations.iter().any(|to| to.bits.is_some()) {
            return Err(Problem::OldForm(index));
        }
        let rule = read_one(rule, index, problems);
        if !rule.destinations.is_empty() && unsigned.overlaps(&rule.sources) {
            return Err(Problem::Unsigned(index));
        }
        read.push(rule);
    }
    Ok(read)
}

fn read_one<'a>(rule: &'a FilterRule, index: usize, problems: &mut Problems) -> Read<'a> {
    let (mut sources, mut capabilities, mut destinations) = (Vec::new(), Vec::new(), Vec::new());
    for source in &rule.sources {
        match parse(source) {
            Ok(Addresses::Ranges(ranges)) => sources.extend(ranges.into_iter().flatten()),
            Ok(Addresses::OfCapability("")) => {}
            Ok(Addresses::OfCapability(name)) => capabilities.push(name),
            Err(bad) => problems.push(Problem::Source(index, bad)),
        }
    }
    for to in &rule.destinations {
        match parse(&to.addresses) {
            Ok(Addresses::Ranges(ranges)) => {
                let ports = to.ports.first..=to.ports.last;
                destinations.extend(ranges.into_iter().flatten().map(|at| (at, ports.clone())));
            }
            Ok(Addresses::OfCapability(_)) => {
                let bad = ParseAddressesError::capability(&to.addresses);
                problems.push(Problem::Destination(index, bad));
            }
            Err(bad) => problems.push(Problem::Destination(index, bad)),
        }
    }
    let named = rule.protocols.iter().filter_map(|number| u8::try_from(*number).ok());
    let mut protocols: Vec<u8> =
        if rule.protocols.is_empty() { USUAL.to_vec() } else { named.collect() };
    protocols.retain(|protocol| *protocol != tsmp::PROTOCOL);
    protocols.sort_unstable();
    protocols.dedup();
    Read { rule, protocols, sources: sources.into_iter().collect(), capabilities, destinations }
}

/// Returns the addresses of the peers that have each capability in the rules.
fn by_capability<'a>(peers: &[Peer<'a>], rules: &[Read<'_>]) -> HashMap<&'a str, AddressSet> {
    let named: HashSet<&str> =
        rules.iter().flat_map(|rule| rule.capabilities.iter().copied()).collect();
    let mut addresses: HashMap<&'a str, Vec<AddressRange>> = HashMap::new();
    let signed = peers.iter().map(|peer| peer.node).filter(|node| !node.unsigned_peer_api_only);
    for node in signed.filter(|_| !named.is_empty()) {
        let own = node.capabilities.iter().chain(node.cap_map.keys());
        for name in own.filter(|name| named.contains(name.as_str())) {
            // Only single addresses count, not networks (`ipnlocal`, `nodeByAddr`).
            let single =
                node.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
            addresses.entry(name).or_default().extend(single.filter_map(range));
        }
    }
    addresses.into_iter().map(|(name, of)| (name, of.into_iter().collect())).collect()
}

/// Builds the rules of a policy.
struct Writer<'a> {
    jailed: AddressSet,
    by_capability: HashMap<&'a str, AddressSet>,
    local: &'a AddressSet,
    rules: Vec<Rule>,
    /// The number of ranges in all rules.
    sources: usize,
    destinations: usize,
}

impl Writer<'_> {
    /// Adds a rule. Returns false if it exceeds the limits.
    fn write(&mut self, rule: &Read<'_>) -> bool {
        let reached = rule.destinations.iter().filter(|(to, _)| self.local.overlaps_range(*to));
        let (open, shut): (Vec<_>, Vec<_>) = reached.partition(|(_, ports)| !ports.is_empty());
        let open = destinations(open.into_iter().cloned());
        // ICMP lacks ports: a destination without ports accepts it, too.
        let shut = destinations(shut.into_iter().map(|(to, _)| (*to, 0..=u16::MAX)));
        let sources = rule.sources.less(&self.jailed);
        self.push(&rule.protocols, &sources, open.clone())
            && self.push(&[], &sources, shut)
            && self.write_capabilities(rule, open)
    }

    /// For protocols without ports, a capability as source accepts only ICMP, to all addresses of
    /// each family that the rule has (`match.go`, `matchIPsOnly`).
    fn write_capabilities(&mut self, rule: &Read<'_>, to: Vec<Destination>) -> bool {
        let named = rule.capabilities.iter().filter_map(|name| self.by_capability.get(name));
        let sources: AddressSet = named.flat_map(AddressSet::ranges).collect();
        let sources = sources.less(&self.jailed);
        let ported = rule.protocols.iter().copied().filter(|own| WITH_PORTS.contains(own));
        let ported: Vec<u8> = ported.collect();
        let families = [AddressRange::V4, AddressRange::V6].into_iter().filter(|family| {
            let of_it = |to: &AddressRange| to.first().is_ipv4() == family.first().is_ipv4();
            rule.destinations.iter().any(|(to, _)| of_it(to))
        });
        let every = destinations(families.map(|family| (family, 0..=u16::MAX)));
        (ported.is_empty() || self.push(&ported, &sources, to)) && self.push(&[], &sources, every)
    }

    fn push(&mut self, protocols: &[u8], from: &AddressSet, to: Vec<Destination>) -> bool {
        if from.is_empty() || to.is_empty() {
            return true;
        }
        let sources = self.sources + from.len();
        let reached = self.destinations + to.len();
        if sources + reached > MAX_RANGES || sources.saturating_mul(reached) > MAX_BITS {
            return false;
        }
        (self.sources, self.destinations) = (sources, reached);
        self.rules.push(Rule {
            protocols: protocols.to_vec(),
            sources: from.ranges().collect(),
            destinations: to,
        });
        true
    }
}

fn destinations(of: impl Iterator<Item = (AddressRange, RangeInclusive<u16>)>) -> Vec<Destination> {
    of.map(|(addresses, ports)| Destination { addresses, ports }).collect()
}

/// Returns the addresses of a network.
fn range(net: &IpNet) -> Option<AddressRange> {
    AddressRange::prefix(net.addr(), net.prefix_len())
}

#[cfg(test)]
mod tests;
