//! Measures a filter of 1,000 rules. The last rule accepts.

use std::{hint::black_box, net::Ipv4Addr, sync::Arc};

use packet::{
    filter::{AddressRange, Destination, Flow, Judge, Policy, Rule, Rules},
    wire::IpHeader,
};

use crate::measure::{Times, measuring, table, work};

const RULES: u32 = 1_000;
const LOCAL: u32 = 0x6440_0001;
const PEER: u32 = 0x6450_0000;

/// Each rule has a different source and port.
fn policy() -> Policy {
    let range = |bits| AddressRange::from(std::net::IpAddr::from(Ipv4Addr::from_bits(bits)));
    let rule = |number: u32| Rule {
        protocols: vec![6, 17],
        sources: vec![range(PEER + 2 * number)],
        destinations: vec![Destination {
            addresses: range(LOCAL),
            ports: port(number)..=port(number),
        }],
    };
    let rules = (0..RULES).map(rule).collect();
    Policy { local: vec![range(LOCAL)], rules, ..Policy::default() }
}

fn port(rule: u32) -> u16 {
    8_000 + rule as u16
}

/// A UDP packet that the rule at index `rule` accepts.
fn udp(rule: u32, source_port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0x05, 0x78, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend((PEER + 2 * rule).to_be_bytes());
    packet.extend(LOCAL.to_be_bytes());
    packet.extend([source_port.to_be_bytes(), port(rule).to_be_bytes()].concat());
    packet.resize(1_400, 0);
    packet
}

/// The baseline without tables: a walk over the rules.
fn walk(policy: &Policy, source: Ipv4Addr, destination: Ipv4Addr, port: u16) -> bool {
    let holds = |range: &AddressRange, address: Ipv4Addr| {
        range.first() <= address && range.last() >= address
    };
    policy.rules.iter().any(|rule| {
        rule.protocols.contains(&17)
            && rule.sources.iter().any(|range| holds(range, source))
            && rule
                .destinations
                .iter()
                .any(|to| holds(&to.addresses, destination) && to.ports.contains(&port))
    })
}

/// Measures one packet at a time.
pub(crate) fn filter() {
    let policy = policy();
    let rules = Arc::new(Rules::new(&policy));
    let last = RULES - 1;
    let run = udp(last, 1);
    // All packets have the same header. Unwrapping has parsed it.
    let header = IpHeader::parse(&run).expect("an IP packet");
    let flows: Vec<_> = (0..64).map(|source_port| udp(last, source_port)).collect();
    let count = if measuring() { 60_000 } else { 10 };
    let strangers: Vec<_> = (0..count).map(|source_port| udp(last, source_port)).collect();
    let mut judges: [Judge; 3] = std::array::from_fn(|_| Judge::new(rules.clone(), 1));
    let [same, known, new] = &mut judges;
    let (mut at, mut stranger) = (0, 0);
    let times = Times::of([
        work(|| Flow::read(black_box(&run))),
        work(|| same.accepts_parsed(black_box(&header), black_box(&run), |_| false)),
        work(|| {
            at = (at + 1) % flows.len();
            known.accepts_parsed(black_box(&header), black_box(&flows[at]), |_| false)
        }),
        work(|| {
            stranger = (stranger + 1) % strangers.len();
            new.accepts_parsed(black_box(&header), black_box(&strangers[stranger]), |_| false)
        }),
        work(|| {
            let (source, to) = (Ipv4Addr::from_bits(PEER + 2 * last), Ipv4Addr::from_bits(LOCAL));
            walk(black_box(&policy), black_box(source), to, black_box(port(last)))
        }),
        work(|| Rules::new(black_box(&policy))),
    ]);
    let names = [
        "reading its flow",
        "of the flow of the packet before",
        "of one of 64 flows in turn",
        "of a new flow: table and rules",
        "a walk through the rules, for comparison",
        "compiling the rules",
    ];
    let rows: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| [(*name).to_owned(), format!("{:.1}", times.ns(index))])
        .collect();
    table("Filter of 1,000 rules, a packet", ["", "ns"], &rows);
}
