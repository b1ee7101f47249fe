//! Operations of a tunnel on inner IP packets.

pub use crate::wire::{IpHeader, ParseError};
use crate::{
    Ecn,
    wire::{Fragment, Version, get_u16, ipv4, protocol, put_u16, udp},
};

/// Returns the destination port and the payload of a UDP packet. It accepts a first fragment, but
/// no later fragment and no IPv6 extension header.
pub fn udp_payload<'a>(header: &IpHeader, packet: &'a [u8]) -> Option<(u16, &'a [u8])> {
    if header.protocol != protocol::UDP
        || header.fragment == Fragment::Later
        || header.version == Version::V6 && !header.plain
    {
        return None;
    }
    let datagram = packet.get(usize::from(header.transport)..)?;
    let payload = datagram.get(udp::HEADER_LEN..)?;
    Some((get_u16(datagram, udp::DESTINATION_PORT), payload))
}

/// Sets the ECN bits of a packet that [`IpHeader::parse`] accepted, and updates the IPv4 header
/// checksum incrementally (RFC 1624 equation 3).
pub fn set_ecn(packet: &mut [u8], ecn: Ecn) {
    if packet[0] >> 4 == 6 {
        packet[1] = packet[1] & !0x30 | ecn.bits() << 4;
        return;
    }
    let word = ipv4::VERSION_IHL..ipv4::TOS + 1;
    let old = get_u16(packet, word.clone());
    packet[ipv4::TOS] = packet[ipv4::TOS] & !0b11 | ecn.bits();
    let new = get_u16(packet, word);
    let checksum = get_u16(packet, ipv4::CHECKSUM);
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    put_u16(packet, ipv4::CHECKSUM, !(folded as u16));
}

/// Marks a packet with "congestion experienced" if its sender supports ECN (RFC 3168 section 5).
/// Returns whether it does.
pub fn mark_congestion(header: &mut IpHeader, packet: &mut [u8]) -> bool {
    let capable = header.ecn != Ecn::NotEct;
    if capable {
        set_ecn(packet, Ecn::Ce);
        header.ecn = Ecn::Ce;
    }
    capable
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn udp_payload(packet: &[u8]) -> Option<(u16, &[u8])> {
        IpHeader::parse(packet).ok().and_then(|header| super::udp_payload(&header, packet))
    }

    fn ipv4_sum(header: &[u8]) -> u16 {
        let sum: u32 =
            header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn ipv4(tos: u8, id: u16, len: u16) -> Vec<u8> {
        let mut packet = vec![0x45, tos, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        let sum = !ipv4_sum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.resize(usize::from(len), 0);
        packet
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let mut short = ipv4(0, 0, 40);
        short[3] = 19;
        assert_eq!(IpHeader::parse(&short), Err(ParseError::Length));
        assert_eq!(IpHeader::parse(&ipv4(0, 0, 40)[..39]), Err(ParseError::Length));
        assert_eq!(IpHeader::parse(&ipv4(0, 0, 40)[..19]), Err(ParseError::Truncated));
        assert_eq!(IpHeader::parse(&[0x60; 39]), Err(ParseError::Truncated));
        assert_eq!(IpHeader::parse(&[0x60; 60]), Err(ParseError::Length));
        assert_eq!(IpHeader::parse(&[0x50; 60]), Err(ParseError::Version));
        assert_eq!(IpHeader::parse(&[]), Err(ParseError::Truncated));
    }

    #[test]
    fn an_ipv6_traffic_class_spans_two_bytes() {
        let mut packet = [0u8; 40];
        packet[0] = 0x6a;
        packet[1] = 0xb5;
        assert_eq!(IpHeader::parse(&packet).unwrap().ecn, Ecn::Ce);
        set_ecn(&mut packet, Ecn::Ect0);
        assert_eq!(packet[..2], [0x6a, 0xa5]);
        assert_eq!(IpHeader::parse(&packet).unwrap().ecn, Ecn::Ect0);
    }

    #[test]
    fn udp_payload_is_returned_for_udp_only() {
        let udp = [&[0x10, 0, 0xca, 0x6c, 0, 11, 0, 0][..], b"abc"].concat();
        let mut v4 = ipv4(0, 0, 31);
        v4[20..].copy_from_slice(&udp);
        assert_eq!(udp_payload(&v4), Some((51820, &b"abc"[..])));
        let with_options = [&[0x46], &v4[1..20], &[1; 4], &udp].concat();
        assert_eq!(udp_payload(&with_options), Some((51820, &b"abc"[..])));
        let mut first = v4.clone();
        first[6] = 0x20;
        assert_eq!(udp_payload(&first), Some((51820, &b"abc"[..])));
        let v6 = [&[0x60, 0, 0, 0, 0, 11, 17, 64][..], &[0; 32], &udp].concat();
        assert_eq!(udp_payload(&v6), Some((51820, &b"abc"[..])));
        for (packet, at, byte) in [(&v4, 7, 1), (&v4, 6, 0x1f), (&v4, 9, 6), (&v6, 6, 6)] {
            let mut other = packet.clone();
            other[at] = byte;
            assert_eq!(udp_payload(&other), None, "byte {at} is {byte}");
        }
        assert_eq!(udp_payload(&v4[..27]), None);
        assert_eq!(udp_payload(&v6[..44]), None);
    }

    proptest! {
        #[test]
        fn changing_ecn_keeps_an_ipv4_header_sum_valid(tos: u8, id: u16, bits in 0u8..4) {
            let mut packet = ipv4(tos, id, 28);
            set_ecn(&mut packet, Ecn::from_bits(bits));
            prop_assert_eq!(IpHeader::parse(&packet).unwrap().ecn.bits(), bits);
            prop_assert_eq!(ipv4_sum(&packet[..20]), 0xffff);
            prop_assert_eq!(packet[1] >> 2, tos >> 2);
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = IpHeader::parse(&bytes) {
                prop_assert!(header.total_len <= bytes.len());
                prop_assert!(udp_payload(&bytes).is_none_or(|(_, data)| data.len() < bytes.len()));
            }
        }
    }
}
