//! The inner IP header: as much of it as a tunnel has to read and to change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Ecn;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

/// Field offsets of an IPv4 header (RFC 791 section 3.1).
mod v4 {
    use std::ops::Range;
    pub const TOS: usize = 1;
    pub const TOTAL_LENGTH: Range<usize> = 2..4;
    pub const FRAGMENT: Range<usize> = 6..8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: Range<usize> = 10..12;
    pub const SOURCE: Range<usize> = 12..16;
    pub const DESTINATION: Range<usize> = 16..20;
}

/// Field offsets of an IPv6 header (RFC 8200 section 3).
mod v6 {
    use std::ops::Range;
    pub const PAYLOAD_LENGTH: Range<usize> = 4..6;
    pub const NEXT_HEADER: usize = 6;
    pub const SOURCE: Range<usize> = 8..24;
    pub const DESTINATION: Range<usize> = 24..40;
}

/// What a tunnel needs of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Length of the whole packet by its header, in bytes.
    pub total_len: usize,
    /// The ECN bits.
    pub ecn: Ecn,
}

/// Why bytes are no IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Shorter than the header of its version.
    Truncated,
    /// Neither version 4 nor 6.
    Version,
    /// The length field is shorter than the header, or longer than the bytes.
    Length,
}

impl IpHeader {
    /// Reads the header of the packet that `bytes` start with. Bytes behind
    /// the packet are allowed: a tunnel pads.
    ///
    /// # Errors
    /// The bytes are no IP packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let header = match bytes.first().map(|first| first >> 4) {
            None => return Err(ParseError::Truncated),
            Some(4) => Self::parse_v4(bytes)?,
            Some(6) => Self::parse_v6(bytes)?,
            Some(_) => return Err(ParseError::Version),
        };
        if header.total_len > bytes.len() {
            return Err(ParseError::Length);
        }
        Ok(header)
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, ParseError> {
        let header: &[u8; IPV4_HEADER] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let total_len = usize::from(u16::from_be_bytes(field(header, v4::TOTAL_LENGTH)));
        if total_len < IPV4_HEADER {
            return Err(ParseError::Length);
        }
        Ok(Self {
            source: Ipv4Addr::from(field(header, v4::SOURCE)).into(),
            destination: Ipv4Addr::from(field(header, v4::DESTINATION)).into(),
            total_len,
            ecn: Ecn::from_bits(header[v4::TOS]),
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, ParseError> {
        let header: &[u8; IPV6_HEADER] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let payload = usize::from(u16::from_be_bytes(field(header, v6::PAYLOAD_LENGTH)));
        Ok(Self {
            source: Ipv6Addr::from(field(header, v6::SOURCE)).into(),
            destination: Ipv6Addr::from(field(header, v6::DESTINATION)).into(),
            total_len: IPV6_HEADER + payload,
            ecn: Ecn::from_bits(header[1] >> 4),
        })
    }
}

/// The destination port and the payload of a packet that [`IpHeader::parse`] accepted,
/// where that is UDP. A first fragment is; later ones, and what is behind an IPv6
/// extension header, are not looked into.
pub fn udp_payload(packet: &[u8]) -> Option<(u16, &[u8])> {
    const UDP: u8 = 17;
    const UDP_HEADER: usize = 8;
    const FRAGMENT_OFFSET: u16 = 0x1fff;
    let (protocol, header) = match packet[0] >> 4 {
        6 => (packet[v6::NEXT_HEADER], IPV6_HEADER),
        _ if u16::from_be_bytes(field(packet, v4::FRAGMENT)) & FRAGMENT_OFFSET != 0 => return None,
        _ => (packet[v4::PROTOCOL], usize::from(packet[0] & 0xf) * 4),
    };
    let datagram = packet.get(header..).filter(|_| protocol == UDP)?;
    let payload = datagram.get(UDP_HEADER..)?;
    Some((u16::from_be_bytes([datagram[2], datagram[3]]), payload))
}

/// Sets the ECN bits of a packet that [`IpHeader::parse`] accepted, and mends
/// the IPv4 header checksum by the difference (RFC 1624 equation 3).
pub fn set_ecn(packet: &mut [u8], ecn: Ecn) {
    if packet[0] >> 4 == 6 {
        packet[1] = packet[1] & !0x30 | ecn.bits() << 4;
        return;
    }
    let old = u16::from_be_bytes([packet[0], packet[v4::TOS]]);
    packet[v4::TOS] = packet[v4::TOS] & !0b11 | ecn.bits();
    let new = u16::from_be_bytes([packet[0], packet[v4::TOS]]);
    let checksum = u16::from_be_bytes(field(packet, v4::CHECKSUM));
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    packet[v4::CHECKSUM].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// Tells a packet's receiver of congestion, where its sender knows ECN (RFC 3168
/// section 5). Returns whether it does.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    let capable = IpHeader::parse(packet).is_ok_and(|header| header.ecn != Ecn::NotEct);
    if capable {
        set_ecn(packet, Ecn::Ce);
    }
    capable
}

fn field<const N: usize>(header: &[u8], range: std::ops::Range<usize>) -> [u8; N] {
    header[range].try_into().expect("every field's range has the field's length")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn lengths_that_lie_are_refused() {
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
    fn the_payload_of_udp_is_found_and_of_nothing_else() {
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
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = IpHeader::parse(&bytes) {
                prop_assert!(header.total_len <= bytes.len());
                prop_assert!(udp_payload(&bytes).is_none_or(|(_, data)| data.len() < bytes.len()));
            }
        }
    }
}
