//! The specification: the table in `packet::filter`, applied packet by packet.

use std::net::{IpAddr, Ipv4Addr};

use packet::filter::{AddressRange, Policy, Rule};

use crate::bytes::{ACK, Packet, SYN, Transport};

/// Whether a packet enters after this host has sent the packets `opened`.
pub(crate) fn accepts(policy: &Policy, opened: &[Packet], packet: &Packet) -> bool {
    if matches!(packet.protocol(), 0 | 255) && packet.fragment.is_none_or(|f| f.offset == 0)
        || is_refused_destination(packet.to)
    {
        return false;
    }
    if let Some(fragment) = packet.fragment.filter(|fragment| fragment.offset != 0) {
        return fragment.offset >= 10;
    }
    if !policy.local.iter().any(|range| contains(*range, packet.to)) {
        return false;
    }
    if policy.open_protocols.contains(&packet.protocol()) {
        return true;
    }
    let by_rule =
        |matches: &dyn Fn(&Rule) -> bool| !policy.shields_up && policy.rules.iter().any(matches);
    match packet.transport {
        Transport::Tcp { flags, .. } if flags & (SYN | ACK) != SYN => true,
        Transport::Tcp { ports, .. } => by_rule(&|rule| matches_ports(rule, packet, ports.1)),
        Transport::Udp { ports } | Transport::Sctp { ports } => {
            let reply = Packet { from: packet.to, to: packet.from, ..*packet };
            let transport = match packet.transport {
                Transport::Udp { .. } => Transport::Udp { ports: (ports.1, ports.0) },
                _ => Transport::Sctp { ports: (ports.1, ports.0) },
            };
            let query = Packet { transport, fragment: None, ..reply };
            opened.contains(&query) || by_rule(&|rule| matches_ports(rule, packet, ports.1))
        }
        Transport::Icmp { kind, code } => {
            let answers = match packet.to {
                IpAddr::V4(_) => matches!((kind, code), (3 | 11 | 12, _) | (0, 0)),
                IpAddr::V6(_) => matches!((kind, code), (1..=4, _) | (129, 0)),
            };
            answers || by_rule(&|rule| matches_addresses(rule, packet, &|_, _| true))
        }
        Transport::Other(protocol) => by_rule(&|rule| {
            rule.protocols.contains(&protocol)
                && matches_addresses(rule, packet, &|first, last| (first, last) == (0, u16::MAX))
        }),
    }
}

fn matches_ports(rule: &Rule, packet: &Packet, port: u16) -> bool {
    rule.protocols.contains(&packet.protocol())
        && matches_addresses(rule, packet, &|first, last| first <= port && port <= last)
}

fn matches_addresses(rule: &Rule, packet: &Packet, ports: &dyn Fn(u16, u16) -> bool) -> bool {
    rule.sources.iter().any(|range| contains(*range, packet.from))
        && rule.destinations.iter().any(|destination| {
            contains(destination.addresses, packet.to)
                && ports(*destination.ports.start(), *destination.ports.end())
        })
}

fn contains(range: AddressRange, address: IpAddr) -> bool {
    range.first().is_ipv4() == address.is_ipv4()
        && range.first() <= address
        && address <= range.last()
}

fn is_refused_destination(address: IpAddr) -> bool {
    if address == IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)) {
        return false;
    }
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unicast_link_local(),
    }
}
