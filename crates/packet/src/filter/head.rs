//! The fields that determine the flow of most packets.

use crate::wire::{
    FiveTuple, Fragment, IpHeader, Version, ipv4, ipv6, protocol,
    tcp::{
        self,
        flags::{ACK, SYN},
    },
    udp,
};

/// The fields that determine the flow of a whole TCP or UDP packet without IPv4 options. Packets
/// with equal heads have equal flows. Comparing two heads is much cheaper than classifying a
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    tuple: FiveTuple,
    /// SYN and ACK of TCP; 0 for UDP.
    flags: u8,
}

impl Head {
    /// Returns the head of a packet with parsed IP headers, or `None` if the packet is of another
    /// form.
    #[inline(always)]
    pub(super) fn of(header: &IpHeader, packet: &[u8]) -> Option<Self> {
        let transport_at = match header.version {
            Version::V4 => ipv4::HEADER_LEN,
            Version::V6 => ipv6::HEADER_LEN,
        };
        let is_whole = header.total_len == packet.len()
            && header.fragment == Fragment::Whole
            && usize::from(header.transport) == transport_at;
        if !is_whole {
            return None;
        }
        let transport = &packet[transport_at..];
        let flags = match (header.protocol, transport.len()) {
            (protocol::TCP, tcp::HEADER_LEN..) => transport[tcp::FLAGS] & (SYN | ACK),
            (protocol::UDP, udp::HEADER_LEN..) => 0,
            _ => return None,
        };
        Some(Self { tuple: FiveTuple::parse(header, packet), flags })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;
    use crate::filter::Flow;

    fn packet(v4: bool, tcp: bool) -> Vec<u8> {
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let header = match v4 {
            true => [&[0x45, 0, 0, 44, 0, 0, 0, 0, 64, protocol, 0, 0][..], &[100; 8]].concat(),
            false => [&[0x60, 0, 0, 0, 0, 24, protocol, 64][..], &[0xfd; 32]].concat(),
        };
        [header, vec![0; 24]].concat()
    }

    fn head(packet: &[u8]) -> Option<Head> {
        Head::of(&IpHeader::parse(packet).ok()?, packet)
    }

    #[test]
    fn whole_packets_of_tcp_and_udp_have_a_head() {
        for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
            let whole = packet(v4, tcp);
            assert!(head(&whole).is_some());
            assert_eq!(head(&whole[..whole.len() - 1]), None);
        }
        for (at, byte) in [(0, 0x46), (6, 0x20), (7, 1), (9, 1)] {
            let mut other = packet(true, true);
            other[at] = byte;
            assert_eq!(head(&other), None, "byte {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn packets_with_equal_heads_have_equal_flows(
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
            if let (Some(a), Some(b)) = (head(&one), head(&other)) {
                prop_assert!(a != b || Flow::read(&one) == Flow::read(&other));
            }
        }
    }
}
