//! What a filter has to know of a packet, read from its bytes.

use std::net::Ipv6Addr;

/// Later fragments below this offset, in units of 8 bytes, may overwrite a transport header:
/// the longest IPv4 header and a TCP header, 80 bytes.
const LEAST_LATER_OFFSET: u16 = 10;

/// IP protocol numbers.
mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6_FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
    pub const RESERVED: u8 = 255;
}

/// Flags of a TCP header.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A packet as a filter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// One whose flow decides.
    Flow(Flow),
    /// A fragment behind the first: without the first its receiver drops it.
    LaterFragment,
    /// One that no rule can accept.
    Refused,
}

/// What packets have in common that share a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub(super) source: u128,
    pub(super) destination: u128,
    /// 0 where the protocol has none, as with ICMP.
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) protocol: u8,
    pub(super) v4: bool,
    pub(super) kind: Kind,
}

/// How the verdict on a packet is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of no packet.
    #[default]
    Nothing,
    /// A TCP connection's first segment.
    Opening,
    /// Any other TCP segment.
    Connected,
    /// UDP or SCTP.
    Datagram,
    /// An ICMP error or an echo reply.
    Answer,
    /// Any other ICMP message.
    Request,
    /// A protocol without ports.
    Portless,
}

impl Flow {
    /// Reads the packet that `bytes` are; its length field may leave bytes over at the end.
    pub fn read(bytes: &[u8]) -> Reading {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => read_v4(bytes),
            Some(6) => read_v6(bytes),
            _ => None,
        }
        .unwrap_or(Reading::Refused)
    }

    /// The flow of replies.
    pub(super) fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    /// Packets of this flow, at the start of a transport header.
    fn begin(self, transport: &[u8]) -> Option<Reading> {
        let ports = || {
            let port = |at| u16::from_be_bytes([transport[at], transport[at + 1]]);
            (port(0), port(2))
        };
        let (kind, least) = match (self.protocol, self.v4) {
            (protocol::HOP_BY_HOP | protocol::RESERVED, _) => return None,
            (protocol::TCP, _) => (Kind::Connected, 20),
            (protocol::UDP, _) => (Kind::Datagram, 8),
            (protocol::SCTP, _) => (Kind::Datagram, 12),
            (protocol::ICMP, true) | (protocol::ICMPV6, false) => (Kind::Request, 4),
            (protocol::IGMP, true) => (Kind::Portless, 8),
            _ => (Kind::Portless, 0),
        };
        if transport.len() < least {
            return None;
        }
        let mut flow = Self { kind, ..self };
        match kind {
            Kind::Connected => {
                (flow.source_port, flow.destination_port) = ports();
                if transport[13] & (SYN | ACK) == SYN {
                    flow.kind = Kind::Opening;
                }
            }
            Kind::Datagram => (flow.source_port, flow.destination_port) = ports(),
            Kind::Request if is_answer(transport, self.v4) => flow.kind = Kind::Answer,
            _ => {}
        }
        Some(Reading::Flow(flow))
    }
}

/// Whether an ICMP message is an error or an echo reply.
fn is_answer(icmp: &[u8], v4: bool) -> bool {
    if icmp.len() < 8 {
        return false;
    }
    match (v4, icmp[0], icmp[1]) {
        // Unreachable, time exceeded, parameter problem; echo reply (RFC 792).
        (true, 3 | 11 | 12, _) | (true, 0, 0) => true,
        // Unreachable, too big, time exceeded, parameter problem; echo reply (RFC 4443).
        (false, 1..=4, _) | (false, 129, 0) => true,
        _ => false,
    }
}

fn read_v4(bytes: &[u8]) -> Option<Reading> {
    let header: &[u8; 20] = bytes.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let (source, destination) = (long(12), long(16));
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let transport = bytes.get(header_len..word(2).into())?;
    if header_len < header.len() || is_refused_v4(destination) {
        return None;
    }
    let flow = Flow {
        source: source.into(),
        destination: destination.into(),
        protocol: header[9],
        v4: true,
        ..Flow::default()
    };
    match word(6) & 0x1fff {
        0 => flow.begin(transport),
        LEAST_LATER_OFFSET.. => Some(Reading::LaterFragment),
        _ => None,
    }
}

fn read_v6(bytes: &[u8]) -> Option<Reading> {
    let header: &[u8; 40] = bytes.first_chunk()?;
    let address = |at: usize| {
        u128::from_be_bytes(header[at..at + 16].try_into().expect("sixteen bytes of forty"))
    };
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let behind = bytes.get(header.len()..header.len() + payload)?;
    let flow = Flow {
        source: address(8),
        destination: address(24),
        protocol: header[6],
        v4: false,
        ..Flow::default()
    };
    if is_refused_v6(flow.destination) {
        return None;
    }
    if flow.protocol != protocol::IPV6_FRAGMENT {
        return flow.begin(behind);
    }
    let (fragment, transport) = behind.split_at_checked(8)?;
    match u16::from_be_bytes([fragment[2], fragment[3]]) >> 3 {
        0 => Flow { protocol: fragment[0], ..flow }.begin(transport),
        LEAST_LATER_OFFSET.. => Some(Reading::LaterFragment),
        _ => None,
    }
}

/// Whether nothing may go to an address: multicast, and link-local but where clouds answer
/// questions of their machines.
fn is_refused_v4(address: u32) -> bool {
    const METADATA: u32 = 0xa9fe_a9fe;
    address >> 28 == 0xe || (address >> 16 == 0xa9fe && address != METADATA)
}

fn is_refused_v6(address: u128) -> bool {
    let mapped = || Ipv6Addr::from_bits(address).to_ipv4_mapped();
    address >> 120 == 0xff
        || address >> 118 == 0x3fa
        || mapped().is_some_and(|v4| v4.is_multicast() || v4.is_link_local())
}

/// The bytes of a whole TCP or UDP packet, without IPv4 options, that decide on its flow:
/// packets with the same head are read alike. To compare two is much cheaper than to read
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head([u64; 5]);

impl Head {
    /// The head of a packet, if it has any.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let (addresses, protocol, transport) = match packet.first()? {
            0x45 => {
                let header: &[u8; 20] = packet.first_chunk()?;
                let is_whole = usize::from(u16::from_be_bytes([header[2], header[3]]))
                    == packet.len()
                    && header[6] & 0x3f == 0
                    && header[7] == 0;
                let addresses = [word(header, 12), 0, 0, 0];
                (is_whole.then_some(addresses)?, header[9], &packet[20..])
            }
            0x60..=0x6f => {
                let header: &[u8; 40] = packet.first_chunk()?;
                let is_whole =
                    usize::from(u16::from_be_bytes([header[4], header[5]])) + 40 == packet.len();
                let addresses = [8, 16, 24, 32].map(|at| word(header, at));
                (is_whole.then_some(addresses)?, header[6], &packet[40..])
            }
            _ => return None,
        };
        let (ports, flags) = match (protocol, transport.len()) {
            (protocol::TCP, 20..) => (&transport[..4], transport[13] & (SYN | ACK)),
            (protocol::UDP, 8..) => (&transport[..4], 0),
            _ => return None,
        };
        let [a, b, c, d] = addresses;
        let ports = u32::from_ne_bytes(ports.try_into().expect("four bytes"));
        let rest = u64::from(ports) << 32
            | u64::from(protocol) << 16
            | u64::from(flags) << 8
            | u64::from(packet[0] >> 4);
        Some(Self([a, b, c, d, rest]))
    }
}

fn word(header: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(header[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    fn packet(v4: bool, tcp: bool) -> Vec<u8> {
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let header = match v4 {
            true => [&[0x45, 0, 0, 44, 0, 0, 0, 0, 64, protocol, 0, 0][..], &[100; 8]].concat(),
            false => [&[0x60, 0, 0, 0, 0, 24, protocol, 64][..], &[0xfd; 32]].concat(),
        };
        [header, vec![0; 24]].concat()
    }

    #[test]
    fn whole_packets_of_tcp_and_udp_have_a_head() {
        for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
            let whole = packet(v4, tcp);
            assert!(Head::of(&whole).is_some());
            assert_eq!(Head::of(&whole[..whole.len() - 1]), None);
        }
        for (at, byte) in [(0, 0x46), (6, 0x20), (7, 1), (9, 1)] {
            let mut other = packet(true, true);
            other[at] = byte;
            assert_eq!(Head::of(&other), None, "byte {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn packets_with_the_same_head_are_read_alike(
            v4: bool,
            tcp: bool,
            common in vec((any::<Index>(), any::<u8>()), 0..3),
            changed in vec((any::<Index>(), any::<u8>()), 1..3),
        ) {
            let mut one = packet(v4, tcp);
            let len = one.len();
            common.iter().for_each(|(at, byte)| one[at.index(len)] = *byte);
            let mut other = one.clone();
            changed.iter().for_each(|(at, byte)| other[at.index(len)] ^= byte);
            if let (Some(a), Some(b)) = (Head::of(&one), Head::of(&other)) {
                prop_assert!(a != b || Flow::read(&one) == Flow::read(&other));
            }
        }
    }
}
