//! Classifies a packet for the filter.

use std::net::{IpAddr, Ipv4Addr};

use crate::wire::{
    FiveTuple, Fragment, IpHeader, Version, get_u16, icmp, ipv4, ipv6, protocol,
    tcp::{
        self,
        flags::{ACK, SYN},
    },
    udp,
};

/// Lowest offset of a later fragment, in units of 8 bytes. The longest IPv4 header and a TCP header
/// have 80 bytes, so a fragment below this offset could overwrite a transport header.
const MIN_LATER_FRAGMENT_OFFSET: u16 = 10;

/// Header lengths of protocols that `wire` does not cover, in bytes.
const SCTP_HEADER_LEN: usize = 12;
const IGMP_HEADER_LEN: usize = 8;
/// Type, code and checksum: the least length of an ICMP message, in bytes.
const MIN_ICMP_LEN: usize = 4;

/// Result of classifying a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The verdict depends on the flow.
    Flow(Flow),
    /// A fragment other than the first. The receiver drops it if it did not accept the first.
    LaterFragment,
    /// No rule can accept it.
    Refused,
}

/// The values that packets with the same verdict share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub(super) tuple: FiveTuple,
    pub(super) kind: Kind,
}

/// Selects the check that a packet needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// No packet.
    #[default]
    Unset,
    /// First segment of a TCP connection.
    Opening,
    /// Any other TCP segment.
    Connected,
    /// UDP or SCTP.
    Datagram,
    /// An ICMP error or an echo reply.
    Answer,
    /// Any other ICMP message.
    Request,
    /// Any other protocol. Its ports are not examined.
    Portless,
}

impl Flow {
    /// Classifies the packet at the beginning of `bytes`. Bytes after the packet's length are
    /// ignored.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Reading {
        let Ok(header) = IpHeader::parse(bytes) else { return Reading::Refused };
        Self::parse(&header, bytes)
    }

    /// Classifies a packet with parsed IP headers. An IPv6 extension header counts as a protocol,
    /// except for a fragment header directly after the IPv6 header.
    #[inline(always)]
    pub(super) fn parse(header: &IpHeader, packet: &[u8]) -> Reading {
        let lengths = ipv4::HEADER_LEN..=header.total_len;
        match header.version {
            Version::V4 if !lengths.contains(&header.transport.into()) => Reading::Refused,
            Version::V4 => {
                parse_part(header, packet, ipv4::fragment(packet) & ipv4::FRAGMENT_OFFSET)
            }
            Version::V6 if header.plain => parse_part(header, packet, 0),
            Version::V6 => parse_extension(*header, packet),
        }
    }

    /// The flow of the replies.
    pub(super) fn reversed(self) -> Self {
        Self { tuple: self.tuple.reversed(), ..self }
    }
}

/// Classifies an IPv6 packet with an extension header.
#[cold]
fn parse_extension(header: IpHeader, packet: &[u8]) -> Reading {
    use ipv6::extension::{FRAGMENT, FRAGMENT_LEN, NEXT_HEADER, OFFSET};
    let first = IpHeader {
        protocol: packet[ipv6::NEXT_HEADER],
        transport: ipv6::HEADER_LEN as u16,
        fragment: Fragment::Whole,
        ..header
    };
    if first.protocol != FRAGMENT {
        return parse_part(&first, packet, 0);
    }
    let Some(fragment) = first.transport(packet).first_chunk::<FRAGMENT_LEN>() else {
        return Reading::Refused;
    };
    let behind = IpHeader {
        protocol: fragment[NEXT_HEADER],
        transport: first.transport + FRAGMENT_LEN as u16,
        fragment: Fragment::First,
        ..first
    };
    parse_part(&behind, packet, get_u16(fragment, OFFSET) >> 3)
}

/// Classifies a packet, or a fragment that begins at `offset`, in units of 8 bytes.
#[inline(always)]
fn parse_part(header: &IpHeader, packet: &[u8], offset: u16) -> Reading {
    if is_refused(header.destination(packet)) {
        return Reading::Refused;
    }
    match offset {
        0 => match kind(header, header.transport(packet)) {
            Some(kind) => Reading::Flow(Flow { tuple: FiveTuple::parse(header, packet), kind }),
            None => Reading::Refused,
        },
        MIN_LATER_FRAGMENT_OFFSET.. => Reading::LaterFragment,
        _ => Reading::Refused,
    }
}

/// The kind of a packet; `None` if no rule can accept it.
#[inline(always)]
fn kind(header: &IpHeader, transport: &[u8]) -> Option<Kind> {
    let (kind, least) = match (header.protocol, header.version) {
        (ipv6::extension::HOP_BY_HOP | protocol::RESERVED, _) => return None,
        (protocol::TCP, _) => (Kind::Connected, tcp::HEADER_LEN),
        (protocol::UDP, _) => (Kind::Datagram, udp::HEADER_LEN),
        (protocol::SCTP, _) => (Kind::Datagram, SCTP_HEADER_LEN),
        (protocol::ICMP, Version::V4) | (protocol::ICMPV6, Version::V6) => {
            (Kind::Request, MIN_ICMP_LEN)
        }
        (protocol::IGMP, Version::V4) => (Kind::Portless, IGMP_HEADER_LEN),
        _ => (Kind::Portless, 0),
    };
    if transport.len() < least {
        return None;
    }
    Some(match kind {
        Kind::Connected if transport[tcp::FLAGS] & (SYN | ACK) == SYN => Kind::Opening,
        Kind::Request if is_answer(header.version, transport) => Kind::Answer,
        _ => kind,
    })
}

/// Whether an ICMP message is an error or an echo reply.
fn is_answer(version: Version, message: &[u8]) -> bool {
    use icmp::{v4, v6};
    if message.len() < icmp::HEADER_LEN {
        return false;
    }
    let (kind, code) = (message[icmp::TYPE], message[icmp::CODE]);
    match version {
        Version::V4 => {
            matches!(kind, v4::UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM)
                || (kind, code) == (v4::ECHO_REPLY, 0)
        }
        Version::V6 => {
            matches!(kind, v6::UNREACHABLE..=v6::PARAMETER_PROBLEM)
                || (kind, code) == (v6::ECHO_REPLY, 0)
        }
    }
}

/// Whether no packet may be sent to an address: multicast and link-local addresses, except for the
/// metadata service of clouds.
#[inline(always)]
fn is_refused(destination: IpAddr) -> bool {
    const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
    match destination {
        IpAddr::V4(ip) => ip.is_multicast() || (ip.is_link_local() && ip != METADATA),
        IpAddr::V6(ip) => {
            let is_refused_v4 = |ip: Ipv4Addr| ip.is_multicast() || ip.is_link_local();
            ip.is_multicast()
                || ip.is_unicast_link_local()
                || ip.to_ipv4_mapped().is_some_and(is_refused_v4)
        }
    }
}
