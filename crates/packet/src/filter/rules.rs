//! A policy, compiled for lookups.
//!
//! Each destination of a rule is one bit. The source, destination, port and protocol of a flow are
//! each looked up in a table of [`Intervals`], which returns the bits that contain the value. The
//! flow is accepted if one bit is in all four results. A lookup is four binary searches and an AND
//! over the bits, instead of a walk over all rules. Each distinct set of a table has one bit for
//! each local destination of a rule. Neighbouring intervals in the same rules share a set.

use std::ops::Range;

use super::{
    Flow, Policy, Rule,
    flow::Kind,
    intervals::{Intervals, RuleRange},
};
use crate::wire::Version;

/// A compiled policy.
#[derive(Debug)]
pub struct Rules {
    v4: Family,
    v6: Family,
    open_protocols: [bool; 256],
    shields_up: bool,
}

impl Rules {
    /// Compiles `policy`.
    pub fn new(policy: &Policy) -> Self {
        let mut open_protocols = [false; 256];
        policy.open_protocols.iter().for_each(|open| open_protocols[usize::from(*open)] = true);
        Self {
            v4: Family::new(policy, true),
            v6: Family::new(policy, false),
            open_protocols,
            shields_up: policy.shields_up,
        }
    }

    /// Whether only replies to flows that this host opened are accepted.
    pub fn shields_up(&self) -> bool {
        self.shields_up
    }

    /// Whether the destination of a flow is allowed at all.
    pub fn is_local(&self, flow: &Flow) -> bool {
        self.family(flow).is_local(flow.tuple.destination())
    }

    /// Whether a flow has an open protocol and an allowed destination.
    #[inline]
    pub fn is_open(&self, flow: &Flow) -> bool {
        flow.kind == Kind::Portless
            && self.open_protocols[usize::from(flow.tuple.protocol())]
            && self.is_local(flow)
    }

    /// Whether the rules accept packets of a flow, apart from replies to flows of this host.
    pub fn accept(&self, flow: &Flow) -> bool {
        let family = self.family(flow);
        family.is_local(flow.tuple.destination())
            && (matches!(flow.kind, Kind::Connected | Kind::Answer)
                || self.open_protocols[usize::from(flow.tuple.protocol())]
                || family.accepts(flow))
    }

    fn family(&self, flow: &Flow) -> &Family {
        match flow.tuple.version() {
            Version::V4 => &self.v4,
            Version::V6 => &self.v6,
        }
    }
}

/// The rules for one address family.
#[derive(Debug)]
struct Family {
    /// Disjoint ranges in ascending order, with a gap between any two.
    local: Vec<(u128, u128)>,
    sources: Intervals,
    destinations: Intervals,
    ports: Intervals,
    protocols: Intervals,
    /// The bits of destinations that allow every port.
    every_port: Vec<u64>,
}

/// A destination of a rule. It owns one bit.
struct RuleDestination {
    first: u128,
    last: u128,
    ports: (u16, u16),
}

impl Family {
    fn new(policy: &Policy, v4: bool) -> Self {
        let local = merged_ranges(policy.local.iter().filter_map(|range| range.bits(v4)).collect());
        let (mut destinations, mut rules, mut of_rules) = (Vec::new(), Vec::new(), Vec::new());
        for rule in policy.rules.iter().filter(|_| !policy.shields_up) {
            let first = destinations.len();
            destinations.extend(local_destinations(rule, &local, v4));
            if destinations.len() > first {
                rules.push(rule);
                of_rules.push(first..destinations.len());
            }
        }
        let words = destinations.len().div_ceil(64);
        let each: Vec<Range<usize>> = (0..destinations.len()).map(|bit| bit..bit + 1).collect();
        let numbered = || rules.iter().enumerate();
        let range = |(rule, (first, last))| RuleRange { first, last, rule };
        let sources = numbered().flat_map(|(by, rule)| {
            rule.sources.iter().filter_map(move |range| Some((by, range.bits(v4)?)))
        });
        let protocols = numbered().flat_map(|(by, rule)| {
            rule.protocols.iter().map(move |number| (by, (u128::from(*number), (*number).into())))
        });
        let addresses = destinations
            .iter()
            .map(|destination| (destination.first, destination.last))
            .enumerate();
        let ports = destinations
            .iter()
            .map(|destination| (destination.ports.0.into(), destination.ports.1.into()))
            .enumerate();
        let mut every_port = vec![0; words];
        for (bit, destination) in destinations.iter().enumerate() {
            every_port[bit / 64] |= u64::from(destination.ports == (0, u16::MAX)) << (bit % 64);
        }
        Self {
            sources: Intervals::new(sources.map(range), &of_rules, words),
            destinations: Intervals::new(addresses.map(range), &each, words),
            ports: Intervals::new(ports.map(range), &each, words),
            protocols: Intervals::new(protocols.map(range), &of_rules, words),
            every_port,
            local,
        }
    }

    fn is_local(&self, address: u128) -> bool {
        let behind = self.local.partition_point(|(first, _)| *first <= address);
        behind != 0 && address <= self.local[behind - 1].1
    }

    fn accepts(&self, flow: &Flow) -> bool {
        let source = self.sources.at(flow.tuple.source());
        let destination = self.destinations.at(flow.tuple.destination());
        let protocol = || self.protocols.at(flow.tuple.protocol().into());
        match flow.kind {
            Kind::Opening | Kind::Datagram => {
                let port = self.ports.at(flow.tuple.destination_port().into());
                intersects([source, destination, protocol(), port])
            }
            Kind::Request => intersects([source, destination]),
            Kind::Portless => intersects([source, destination, protocol(), &self.every_port]),
            Kind::Unset | Kind::Connected | Kind::Answer => false,
        }
    }
}

/// The destinations of a rule that contain a local address.
fn local_destinations(
    rule: &Rule,
    local: &[(u128, u128)],
    v4: bool,
) -> impl Iterator<Item = RuleDestination> {
    rule.destinations.iter().filter_map(move |destination| {
        let (first, last) = destination.addresses.bits(v4)?;
        let ports = (*destination.ports.start(), *destination.ports.end());
        let is_local = local.iter().any(|(from, to)| first <= *to && *from <= last);
        (is_local && ports.0 <= ports.1).then_some(RuleDestination { first, last, ports })
    })
}

/// Merges the ranges into as few as possible, in ascending order.
pub fn merged_ranges(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let intersects = next.0 <= last.1.saturating_add(1);
        if intersects {
            last.1 = last.1.max(next.1);
        }
        intersects
    });
    ranges
}

/// Whether a bit is in all sets.
fn intersects<const N: usize>(sets: [&[u64]; N]) -> bool {
    (0..sets[0].len()).any(|word| sets.iter().fold(!0, |bits, set| bits & set[word]) != 0)
}
