//! Examples of the filter's semantics.

use std::{cell::Cell, sync::Arc};

use packet::filter::{AddressRange, Destination, Judge, OpenedFlows, Policy, Rule, Rules};

use crate::bytes::{ACK, Fragment, Packet, SYN, Transport, packet, tcp, udp};

const PEER: &str = "100.64.0.1";
const SELF: &str = "100.64.0.9";

fn range(text: &str) -> AddressRange {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Accepts TCP and UDP from the peer to ports 80 to 90.
fn policy() -> Policy {
    let destination = Destination { addresses: range(SELF), ports: 80..=90 };
    let rule = Rule {
        protocols: vec![6, 17],
        sources: vec![range(PEER)],
        destinations: vec![destination],
    };
    Policy { local: vec![range(SELF)], rules: vec![rule], ..Policy::default() }
}

fn judge(policy: &Policy) -> Judge {
    Judge::new(Arc::new(Rules::new(policy)), 1)
}

fn accepts(policy: &Policy, packet: &Packet) -> bool {
    judge(policy).accepts(&packet.bytes(), |_| false)
}

#[test]
fn only_the_first_segment_of_a_connection_needs_a_rule() {
    let to = |port, flags| accepts(&policy(), &tcp(PEER, SELF, (4000, port), flags));
    assert!(to(80, SYN) && to(90, SYN));
    assert!(!to(79, SYN) && !to(91, SYN));
    assert!(to(22, ACK) && to(22, SYN | ACK) && to(22, 0x04));
    assert!(!accepts(&policy(), &tcp("100.64.0.2", SELF, (4000, 80), SYN)));
    assert!(
        !accepts(&policy(), &tcp(PEER, "100.64.0.8", (4000, 80), ACK)),
        "the address is not local"
    );
}

#[test]
fn replies_to_opened_flows_are_accepted_also_with_shields_up() {
    let shielded = Policy { shields_up: true, ..policy() };
    let (query, reply) = (udp(SELF, PEER, (5000, 53)), udp(PEER, SELF, (53, 5000)));
    let mut opened = OpenedFlows::new(1);
    let mut judge = judge(&shielded);
    assert!(!judge.accepts(&reply.bytes(), |flow| opened.has(flow)));
    opened.note(OpenedFlows::read(&query.bytes()).unwrap());
    judge.begin();
    assert!(judge.accepts(&reply.bytes(), |flow| opened.has(flow)), "the refusal is not cached");
    let other = udp(PEER, SELF, (53, 5001));
    assert!(!judge.accepts(&other.bytes(), |flow| opened.has(flow)));
    assert!(!judge.accepts(&udp(PEER, SELF, (4000, 80)).bytes(), |flow| opened.has(flow)));
    assert_eq!(OpenedFlows::read(&tcp(SELF, PEER, (5000, 53), SYN).bytes()), None);
}

#[test]
fn icmp_errors_and_replies_are_accepted_and_others_by_address() {
    let icmp =
        |from, kind| accepts(&policy(), &packet(from, SELF, Transport::Icmp { kind, code: 0 }));
    for answer in [0, 3, 11, 12] {
        assert!(icmp("100.64.0.2", answer), "type {answer}");
    }
    assert!(icmp(PEER, 8), "some port is open to it");
    assert!(!icmp("100.64.0.2", 8));
    let nameless = Rule { protocols: vec![], ..policy().rules[0].clone() };
    let nameless = Policy { rules: vec![nameless], ..policy() };
    assert!(accepts(&nameless, &packet(PEER, SELF, Transport::Icmp { kind: 8, code: 0 })));
    assert!(!accepts(&nameless, &udp(PEER, SELF, (1, 80))));
}

#[test]
fn later_fragments_are_accepted_if_they_cannot_overwrite_a_header() {
    let at = |offset, to: &str| {
        let fragment = Some(Fragment { offset, more: true });
        accepts(&policy(), &Packet { fragment, ..udp("100.64.0.2", to, (1, 1)) })
    };
    assert!(!at(0, SELF), "the first is judged");
    assert!(!at(1, SELF) && !at(9, SELF));
    assert!(at(10, SELF) && at(10, "100.64.0.8"));
    assert!(!at(10, "224.0.0.1"));
}

#[test]
fn multicast_and_link_local_destinations_are_refused_also_if_ipv4_mapped() {
    let all = [AddressRange::V4, AddressRange::V6];
    let destinations = all.map(|addresses| Destination { addresses, ports: 0..=65535 });
    let rule = Rule { protocols: vec![17], sources: all.into(), destinations: destinations.into() };
    let open = Policy { local: all.into(), rules: vec![rule], ..Policy::default() };
    for (to, enters) in [
        ("224.0.0.1", false),
        ("169.254.0.1", false),
        ("169.254.169.254", true),
        ("100.64.0.9", true),
        ("ff02::1", false),
        ("fe80::1", false),
        ("::ffff:224.0.0.1", false),
        ("::ffff:239.255.255.255", false),
        ("::ffff:169.254.0.1", false),
        ("::ffff:169.254.169.254", false),
        ("::ffff:100.64.0.9", true),
        ("fd00::9", true),
    ] {
        let from = if to.contains(':') { "fd00::1" } else { PEER };
        assert_eq!(accepts(&open, &udp(from, to, (1, 80))), enters, "{to}");
    }
}

#[test]
fn other_protocols_need_a_rule_for_every_port_or_are_open() {
    let gre = packet(PEER, SELF, Transport::Other(47));
    let with = |ports, protocols: &[u8]| {
        let mut policy = policy();
        policy.rules[0].protocols = protocols.into();
        policy.rules[0].destinations[0].ports = ports;
        policy
    };
    assert!(accepts(&with(0..=65535, &[6, 47]), &gre));
    assert!(!accepts(&with(0..=65534, &[6, 47]), &gre));
    assert!(!accepts(&with(0..=65535, &[6]), &gre));
    let open = Policy { open_protocols: vec![47], shields_up: true, ..policy() };
    assert!(accepts(&open, &gre));
    assert!(!accepts(&open, &packet(PEER, "100.64.0.8", Transport::Other(47))));
}

#[test]
fn consecutive_packets_of_one_flow_are_judged_once() {
    let mut judge = judge(&policy());
    let query = Cell::new(0);
    let mut accepts = |packet: &Packet| {
        judge.accepts(&packet.bytes(), |_| {
            query.set(query.get() + 1);
            false
        })
    };
    let (good, bad) = (udp(PEER, SELF, (1, 80)), udp(PEER, SELF, (1, 22)));
    assert!((0..40).all(|_| accepts(&good)));
    assert!((0..40).all(|_| !accepts(&bad)));
    assert!(accepts(&good));
    assert_eq!(judge.judged(), 3);
    assert_eq!(query.get(), 1, "called only if no rule accepts the flow");
}

#[test]
fn a_header_length_below_the_minimum_is_refused() {
    let mut bytes = udp(PEER, SELF, (1, 80)).bytes();
    assert!(judge(&policy()).accepts(&bytes, |_| false));
    bytes[0] = 0x44;
    assert!(!judge(&policy()).accepts(&bytes, |_| false));
}

/// An IPv6 packet with an extension header of eight bytes before all others.
fn behind(number: u8, offset: u16, packet: &[u8]) -> Vec<u8> {
    let field = (offset << 3).to_be_bytes();
    let extension = [packet[6], 0, field[0], field[1], 0, 0, 0, 0];
    let mut bytes = [&packet[..40], &extension, &packet[40..]].concat();
    bytes[5] += 8;
    bytes[6] = number;
    bytes
}

#[test]
fn only_a_fragment_header_directly_after_the_ipv6_header_is_read() {
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let (from, to) = ("fd00::1", "fd00::9");
    let with = |protocols: &[u8]| Policy {
        local: vec![range(to)],
        rules: vec![Rule {
            protocols: protocols.into(),
            sources: vec![range(from)],
            destinations: vec![Destination { addresses: range(to), ports: 0..=65535 }],
        }],
        ..Policy::default()
    };
    let accepts =
        |protocols: &[u8], bytes: &[u8]| judge(&with(protocols)).accepts(bytes, |_| false);
    let udp = udp(from, to, (1, 80)).bytes();
    let options = behind(DESTINATION, 0, &udp);
    let all_but = |number| (0..=255).filter(|other| *other != number).collect::<Vec<u8>>();
    for (bytes, protocol) in [
        (behind(FRAGMENT, 0, &udp), 17),
        (options.clone(), DESTINATION),
        (behind(FRAGMENT, 0, &options), DESTINATION),
        (behind(FRAGMENT, 0, &behind(FRAGMENT, 10, &udp)), FRAGMENT),
        (behind(DESTINATION, 0, &behind(FRAGMENT, 10, &udp)), DESTINATION),
    ] {
        assert!(accepts(&[protocol], &bytes), "{protocol}");
        assert!(!accepts(&all_but(protocol), &bytes), "{protocol}");
    }
    assert!(accepts(&[], &behind(FRAGMENT, 10, &options)), "a later fragment");
    assert!(!accepts(&all_but(1), &behind(0, 0, &udp)), "nothing is behind hop-by-hop options");
}
