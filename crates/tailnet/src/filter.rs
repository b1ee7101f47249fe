//! The coordinator's rules, made into the policy by which packets of peers enter.
//!
//! ```text
//!   own addresses, services, offered networks ──► local ──────────────────────┐
//!   FilterRule ──► texts of addresses ──► AddressSet ── less jailed peers ──► Rule ──► Policy
//!         │                    cap: ──► addresses of peers that have it ──► Rule
//!         └──► grants ──► Grants: who may do what, beside sending packets
//! ```
//!
//! Semantics: tailscale `wgengine/filter/tailcfg.go` and `match.go`, `ipn/ipnlocal/local.go`
//! (`updateFilterLocked`). What cannot be read accepts nothing, and is told. In Tailscale a jailed
//! peer has a filter of its own, whose shields are up; here its addresses are taken out of each
//! rule's sources, which is the same, as no other peer may send from them.

mod addresses;
mod grants;
mod jail;
mod local;
mod text;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;
use packet::filter::{AddressRange, Destination, Policy, Rule};

use self::{
    addresses::AddressSet,
    text::{Addresses, parse},
};
pub use self::{grants::Grants, local::service_addresses, text::ParseAddressesError};
use crate::{
    messages::{FilterRule, Node},
    tsmp,
};

/// What a rule without protocols is for: TCP, UDP and ICMP.
const USUAL: [u8; 4] = [6, 17, 1, 58];
/// Those with ports: TCP, UDP and SCTP.
const WITH_PORTS: [u8; 3] = [6, 17, 132];
/// The most bits of the table in which the data plane looks sources up, 256 MiB: one for each
/// destination, in each set of sources.
const MOST_BITS: usize = 1 << 31;
/// The most ranges of addresses in all.
const MOST_RANGES: usize = 1 << 20;
/// The most problems that are told.
const MAX_REPORTED: usize = 32;

/// What a policy is made of.
#[derive(Clone, Default)]
pub struct Input<'a> {
    /// The rules of all filters, in the order of the filters' names.
    pub rules: Vec<&'a FilterRule>,
    /// This node's addresses.
    pub own: &'a [IpNet],
    /// Addresses of services that this node serves: [`service_addresses`].
    pub services: &'a [IpAddr],
    /// Networks that this node offers.
    pub advertised: &'a [IpNet],
    /// The addresses of this machine's interfaces, each with the length of its network.
    pub interfaces: &'a [IpNet],
    /// The others.
    pub peers: &'a [Peer<'a>],
    /// Whether nothing is accepted that was not begun here.
    pub shields_up: bool,
}

/// A peer, as far as rules go.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// The node.
    pub node: &'a Node,
    /// The networks that it may send from here: those of its that this node accepted.
    pub allowed_ips: &'a [IpNet],
}

/// A policy, and what came of the rules beside.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Which packets may enter.
    pub policy: Policy,
    /// Who may do what, beside sending packets.
    pub grants: Grants,
    /// What was passed over.
    pub problems: Vec<Problem>,
}

/// Something of the rules that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A source of a rule, by the rule's place.
    Source(usize, ParseAddressesError),
    /// A destination of a rule.
    Destination(usize, ParseAddressesError),
    /// What a grant is for.
    Grant(usize, ParseAddressesError),
    /// A rule has networks in a form that was given up in 2020. No rule counts.
    OldForm(usize),
    /// A rule accepts packets of a peer whose key nobody signed. No rule counts.
    Unsigned(usize),
    /// So many rules from here on that they do not fit, and do not count.
    TooMany(usize),
    /// The services of this node cannot be read.
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

/// Makes the policy of a node.
pub fn compile(input: &Input<'_>) -> Compiled {
    let local = local::local(input);
    let policy = Policy {
        local: local.ranges().collect(),
        // Every peer is answered, with shields up, too; no host sees it.
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

/// Problems, the first of them.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn push(&mut self, problem: Problem) {
        if self.0.len() < MAX_REPORTED {
            self.0.push(problem);
        }
    }
}

/// A rule, read.
struct Read<'a> {
    rule: &'a FilterRule,
    protocols: Vec<u8>,
    sources: AddressSet,
    capabilities: Vec<&'a str>,
    destinations: Vec<(AddressRange, RangeInclusive<u16>)>,
}

/// Reads all rules. One that is not as it may be makes all of them invalid.
fn read<'a>(
    rules: &[&'a FilterRule],
    peers: &[Peer<'_>],
    problems: &mut Problems,
) -> Result<Vec<Read<'a>>, Problem> {
    let unsigned = peers.iter().filter(|peer| peer.node.unsigned_peer_api_only);
    let unsigned: AddressSet =
        unsigned.flat_map(|peer| peer.node.allowed_ips()).filter_map(range).collect();
    let mut read = Vec::with_capacity(rules.len());
    for (place, rule) in rules.iter().enumerate() {
        if !rule.source_bits.is_empty() || rule.destinations.iter().any(|to| to.bits.is_some()) {
            return Err(Problem::OldForm(place));
        }
        let rule = read_one(rule, place, problems);
        if !rule.destinations.is_empty() && unsigned.overlaps(&rule.sources) {
            return Err(Problem::Unsigned(place));
        }
        read.push(rule);
    }
    Ok(read)
}

fn read_one<'a>(rule: &'a FilterRule, place: usize, problems: &mut Problems) -> Read<'a> {
    let (mut sources, mut capabilities, mut destinations) = (Vec::new(), Vec::new(), Vec::new());
    for source in &rule.sources {
        match parse(source) {
            Ok(Addresses::Ranges(ranges)) => sources.extend(ranges.into_iter().flatten()),
            Ok(Addresses::OfCapability("")) => {}
            Ok(Addresses::OfCapability(name)) => capabilities.push(name),
            Err(bad) => problems.push(Problem::Source(place, bad)),
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
                problems.push(Problem::Destination(place, bad));
            }
            Err(bad) => problems.push(Problem::Destination(place, bad)),
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

/// The addresses of peers by those of their capabilities that rules name.
fn by_capability<'a>(peers: &[Peer<'a>], rules: &[Read<'_>]) -> HashMap<&'a str, AddressSet> {
    let named: HashSet<&str> =
        rules.iter().flat_map(|rule| rule.capabilities.iter().copied()).collect();
    let mut addresses: HashMap<&'a str, Vec<AddressRange>> = HashMap::new();
    let signed = peers.iter().map(|peer| peer.node).filter(|node| !node.unsigned_peer_api_only);
    for node in signed.filter(|_| !named.is_empty()) {
        let own = node.capabilities.iter().chain(node.cap_map.keys());
        for name in own.filter(|name| named.contains(name.as_str())) {
            // A network is no address of the peer's own (`ipnlocal`, `nodeByAddr`).
            let single =
                node.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
            addresses.entry(name).or_default().extend(single.filter_map(range));
        }
    }
    addresses.into_iter().map(|(name, of)| (name, of.into_iter().collect())).collect()
}

/// Writes rules of a policy.
struct Writer<'a> {
    jailed: AddressSet,
    by_capability: HashMap<&'a str, AddressSet>,
    local: &'a AddressSet,
    rules: Vec<Rule>,
    /// How many ranges all rules have.
    sources: usize,
    destinations: usize,
}

impl Writer<'_> {
    /// Writes a rule. False where it does not fit.
    fn write(&mut self, rule: &Read<'_>) -> bool {
        let reached = rule.destinations.iter().filter(|(to, _)| self.local.overlaps_range(*to));
        let (open, shut): (Vec<_>, Vec<_>) = reached.partition(|(_, ports)| !ports.is_empty());
        let open = destinations(open.into_iter().cloned());
        // ICMP has no ports: to it, even a destination without any is one.
        let shut = destinations(shut.into_iter().map(|(to, _)| (*to, 0..=u16::MAX)));
        let sources = rule.sources.less(&self.jailed);
        self.push(&rule.protocols, &sources, open.clone())
            && self.push(&[], &sources, shut)
            && self.write_capabilities(rule, open)
    }

    /// Of protocols without ports, a capability lets in ICMP alone, and to each address of a family
    /// for which the rule has any (`match.go`, `matchIPsOnly`).
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
        if sources + reached > MOST_RANGES || sources.saturating_mul(reached) > MOST_BITS {
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

/// The addresses of a network.
fn range(net: &IpNet) -> Option<AddressRange> {
    AddressRange::prefix(net.addr(), net.prefix_len())
}

#[cfg(test)]
mod tests;
