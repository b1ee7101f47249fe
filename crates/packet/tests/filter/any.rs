//! Strategies for policies and packets that often match.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use packet::filter::{AddressRange, Destination, Policy, Rule};
use proptest::{collection::vec, prelude::*, sample::select};

use crate::bytes::{Fragment, Packet, Transport};

const SPECIAL_V4: [Ipv4Addr; 6] = [
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::BROADCAST,
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(239, 255, 255, 255),
    Ipv4Addr::new(169, 254, 0, 1),
    Ipv4Addr::new(169, 254, 169, 254),
];

/// Addresses of one family. Most of them are close to each other.
pub(crate) fn address(v4: bool) -> BoxedStrategy<IpAddr> {
    if v4 {
        let near = (0u32..24).prop_map(|low| Ipv4Addr::from_bits(0x6440_0000 | low));
        prop_oneof![30 => near, 1 => select(&SPECIAL_V4[..])].prop_map_into().boxed()
    } else {
        let near = (0u128..24).prop_map(|low| Ipv6Addr::from_bits(0xfd7a << 112 | low << 60));
        let special = select(vec![
            Ipv6Addr::UNSPECIFIED,
            Ipv6Addr::from_bits(u128::MAX),
            "ff02::1".parse().unwrap(),
            "fe80::1".parse().unwrap(),
            "febf::1".parse().unwrap(),
        ]);
        let near_v4 = (0u32..24).prop_map(|low| Ipv4Addr::from_bits(0x6440_0000 | low));
        let mapped = prop_oneof![1 => near_v4, 2 => select(&SPECIAL_V4[..])];
        let mapped = mapped.prop_map(|ip| ip.to_ipv6_mapped());
        prop_oneof![30 => near, 1 => special, 2 => mapped].prop_map_into().boxed()
    }
}

pub(crate) fn range() -> impl Strategy<Value = AddressRange> {
    let ends = any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)));
    let pair = ends.prop_map(|(a, b)| AddressRange::new(a.min(b), a.max(b)).unwrap());
    let prefix = any::<bool>().prop_flat_map(|v4| (address(v4), 0..=if v4 { 32u8 } else { 128 }));
    let prefix = prefix.prop_map(|(ip, len)| AddressRange::prefix(ip, len).unwrap());
    let single = any::<bool>().prop_flat_map(address).prop_map(AddressRange::from);
    prop_oneof![
        4 => pair,
        2 => prefix,
        4 => single,
        1 => select(vec![AddressRange::V4, AddressRange::V6]),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![12 => 1u16..16, 1 => Just(0), 1 => Just(u16::MAX), 1 => any::<u16>()]
}

pub(crate) fn ports() -> impl Strategy<Value = RangeInclusive<u16>> {
    prop_oneof![
        3 => (port(), port()).prop_map(|(a, b)| a.min(b)..=a.max(b)),
        2 => port().prop_map(|port| port..=port),
        2 => Just(0..=u16::MAX),
    ]
}

pub(crate) fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![6 => select(vec![6u8, 17, 1, 58, 132]), 2 => select(vec![2u8, 47, 50, 89]), 1 => any::<u8>()]
}

fn rule() -> impl Strategy<Value = Rule> {
    let destination =
        (range(), ports()).prop_map(|(addresses, ports)| Destination { addresses, ports });
    (vec(protocol(), 0..5), vec(range(), 0..4), vec(destination, 0..4))
        .prop_map(|(protocols, sources, destinations)| Rule { protocols, sources, destinations })
}

pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let open = prop_oneof![3 => Just(vec![]), 1 => Just(vec![99])];
    let count = prop_oneof![6 => 0..12usize, 1 => 60..140usize];
    let rules = count.prop_flat_map(|count| vec(rule(), count));
    let shields = prop::bool::weighted(0.1);
    (vec(range(), 0..6), rules, open, shields).prop_map(
        |(local, rules, open_protocols, shields_up)| Policy {
            local,
            rules,
            open_protocols,
            shields_up,
        },
    )
}

fn transport() -> impl Strategy<Value = Transport> {
    let icmp =
        prop_oneof![3 => select(vec![0u8, 1, 2, 3, 4, 8, 11, 12, 128, 129, 135]), 1 => any::<u8>()];
    let code = prop_oneof![2 => Just(0u8), 1 => 0u8..3];
    prop_oneof![
        4 => ((port(), port()), any::<u8>()).prop_map(|(ports, flags)| Transport::Tcp { ports, flags }),
        2 => (port(), port()).prop_map(|ports| Transport::Tcp { ports, flags: crate::bytes::SYN }),
        4 => (port(), port()).prop_map(|ports| Transport::Udp { ports }),
        2 => (port(), port()).prop_map(|ports| Transport::Sctp { ports }),
        3 => (icmp, code).prop_map(|(kind, code)| Transport::Icmp { kind, code }),
        2 => select(vec![0u8, 2, 47, 50, 89, 99, 253, 255]).prop_map(Transport::Other),
    ]
}

pub(crate) fn packet() -> impl Strategy<Value = Packet> {
    let fragment = (prop_oneof![Just(0u16), 1u16..20], any::<bool>())
        .prop_map(|(offset, more)| Fragment { offset, more });
    let fragment = prop_oneof![6 => Just(None), 1 => fragment.prop_map(Some)];
    let addresses = any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)));
    (addresses, transport(), fragment).prop_map(|((from, to), transport, fragment)| Packet {
        from,
        to,
        transport,
        fragment,
    })
}
