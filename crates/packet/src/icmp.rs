//! The answer to a packet that is too long: "fragmentation needed" (RFC 1191 section 4) or "packet
//! too big" (RFC 4443 section 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    checksum::{add, sum},
    wire::{Fragment, IpHeader, icmp, ipv4, ipv6, protocol, put_u16, put_u32},
};

/// The longest answers, in bytes. Every host accepts these lengths (RFC 1812 section 4.3.2.3, RFC
/// 4443 section 2.4 c).
const MAX_ANSWER_V4: usize = 576;
const MAX_ANSWER_V6: usize = 1280;
/// Precedence "internetwork control" of a router's errors (RFC 1812 section 4.3.2.5).
const TOS: u8 = 0xc0;
/// Hop limit of an answer (RFC 1340 recommends 64).
const HOPS: u8 = 64;

/// Builds an answer to the sender of `packet`: packets to that destination may have `mtu` bytes.
/// The answer's source is the packet's destination. That address is behind the tunnel, so source
/// filters accept it, and this host does not need an own address.
///
/// Returns `None` if an answer is forbidden: to an error, to a fragment other than the first, and
/// if source or destination is not a single host (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4
/// e).
pub fn packet_too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let header = IpHeader::parse(packet).ok()?;
    let (from, to) = (header.destination(packet), header.source(packet));
    if !is_one_host(from) || !is_one_host(to) {
        return None;
    }
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            may_answer_v4(&header, packet).then(|| answer_v4(packet, from, to, mtu))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            may_answer_v6(&header, packet).then(|| answer_v6(packet, from, to, mtu))
        }
        _ => None,
    }
}

/// Whether routers must not fragment `packet`: any IPv6 packet, and IPv4 with the DF bit.
pub fn is_unfragmentable(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
        || packet.len() >= ipv4::HEADER_LEN && ipv4::fragment(packet) & ipv4::DONT_FRAGMENT != 0
}

fn is_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

fn may_answer_v4(header: &IpHeader, packet: &[u8]) -> bool {
    let is_error = header.protocol == protocol::ICMP
        && header.transport(packet).first().is_none_or(|kind| icmp::v4::is_error(*kind));
    header.fragment != Fragment::Later && !is_error
}

fn may_answer_v6(header: &IpHeader, packet: &[u8]) -> bool {
    let is_error = header.protocol == protocol::ICMPV6
        && header.transport(packet).first().is_none_or(|kind| icmp::v6::is_error(*kind));
    header.has_transport() && !is_error
}

fn answer_v4(packet: &[u8], from: Ipv4Addr, to: Ipv4Addr, mtu: u16) -> Vec<u8> {
    const HEADERS: usize = ipv4::HEADER_LEN + icmp::HEADER_LEN;
    let quoted = &packet[..packet.len().min(MAX_ANSWER_V4 - HEADERS)];
    let mut answer = vec![0; HEADERS];
    answer.extend(quoted);
    let len = answer.len() as u16;
    let (ip, message) = answer.split_at_mut(ipv4::HEADER_LEN);
    ip[ipv4::VERSION_IHL] = ipv4::PLAIN;
    ip[ipv4::TOS] = TOS;
    put_u16(ip, ipv4::TOTAL_LEN, len);
    put_u16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
    ip[ipv4::TTL] = HOPS;
    ip[ipv4::PROTOCOL] = protocol::ICMP;
    ip[ipv4::SOURCE].copy_from_slice(&from.octets());
    ip[ipv4::DESTINATION].copy_from_slice(&to.octets());
    let checksum = !sum(ip);
    put_u16(ip, ipv4::CHECKSUM, checksum);
    message[icmp::TYPE] = icmp::v4::UNREACHABLE;
    message[icmp::CODE] = icmp::v4::FRAGMENTATION_NEEDED;
    put_u16(message, icmp::v4::MTU, mtu);
    let checksum = !sum(message);
    put_u16(message, icmp::CHECKSUM, checksum);
    answer
}

fn answer_v6(packet: &[u8], from: Ipv6Addr, to: Ipv6Addr, mtu: u16) -> Vec<u8> {
    const HEADERS: usize = ipv6::HEADER_LEN + icmp::HEADER_LEN;
    let quoted = &packet[..packet.len().min(MAX_ANSWER_V6 - HEADERS)];
    let mut answer = vec![0; HEADERS];
    answer.extend(quoted);
    let (ip, message) = answer.split_at_mut(ipv6::HEADER_LEN);
    let len = message.len() as u16;
    put_u32(ip, ipv6::VERSION_CLASS_LABEL, 6 << 28 | u32::from(TOS) << 20);
    put_u16(ip, ipv6::PAYLOAD_LEN, len);
    ip[ipv6::NEXT_HEADER] = protocol::ICMPV6;
    ip[ipv6::HOP_LIMIT] = HOPS;
    ip[ipv6::SOURCE].copy_from_slice(&from.octets());
    ip[ipv6::DESTINATION].copy_from_slice(&to.octets());
    message[icmp::TYPE] = icmp::v6::PACKET_TOO_BIG;
    put_u32(message, icmp::v6::MTU, mtu.into());
    let pseudo = add(sum(&ip[ipv6::ADDRESSES]), add(len, protocol::ICMPV6.into()));
    let checksum = !add(pseudo, sum(message));
    put_u16(message, icmp::CHECKSUM, checksum);
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn udp_v4(len: usize) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.resize(len, 7);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet
    }

    fn udp_v6(len: usize) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        packet.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        packet.resize(len, 7);
        packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
        packet
    }

    /// RFC 1071, word by word.
    fn slow_sum(bytes: &[u8]) -> u32 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let total: u32 = bytes.chunks(2).map(word).sum();
        let total = (total & 0xffff) + (total >> 16);
        (total & 0xffff) + (total >> 16)
    }

    #[test]
    fn an_answer_contains_the_mtu_and_quotes_the_packet() {
        for len in [28, 547, 548, 549, 1420, 60_000] {
            let packet = udp_v4(len);
            let answer = packet_too_big(&packet, 1300).unwrap();
            let header = IpHeader::parse(&answer).unwrap();
            assert_eq!(header.total_len, answer.len());
            assert_eq!(
                [header.source(&answer), header.destination(&answer)],
                ["10.0.0.2", "10.0.0.1"].map(|a| a.parse::<IpAddr>().unwrap())
            );
            assert_eq!(
                (answer[9], &answer[20..22], &answer[24..28]),
                (1, &[3, 4][..], &[0, 0, 5, 20][..])
            );
            assert_eq!(answer[28..], packet[..len.min(548)]);
            assert_eq!((slow_sum(&answer[..20]), slow_sum(&answer[20..])), (0xffff, 0xffff));
        }
        for len in [48, 1232, 1233, 1420] {
            let packet = udp_v6(len);
            let answer = packet_too_big(&packet, 1300).unwrap();
            let header = IpHeader::parse(&answer).unwrap();
            assert_eq!(header.total_len, answer.len());
            assert_eq!(
                [header.source(&answer), header.destination(&answer)],
                ["fd00::2", "fd00::1"].map(|a| a.parse::<IpAddr>().unwrap())
            );
            assert_eq!(
                (answer[6], &answer[40..42], &answer[44..48]),
                (58, &[2, 0][..], &[0, 0, 5, 20][..])
            );
            assert_eq!(answer[48..], packet[..len.min(1232)]);
            let mut pseudo = answer[8..40].to_vec();
            pseudo.extend(((answer.len() - 40) as u32).to_be_bytes());
            pseudo.extend([0, 0, 0, 58]);
            pseudo.extend(&answer[40..]);
            assert_eq!(slow_sum(&pseudo), 0xffff);
        }
    }

    #[test]
    fn errors_fragments_and_multicast_are_not_answered() {
        let change = |mut packet: Vec<u8>, changes: &[(usize, u8)]| {
            changes.iter().for_each(|(at, byte)| packet[*at] = *byte);
            packet_too_big(&packet, 1300)
        };
        let v4: [(&str, &[(usize, u8)]); 7] = [
            ("an error", &[(9, 1), (20, 3)]),
            ("a later fragment", &[(7, 9)]),
            ("to a group", &[(16, 224)]),
            ("to all", &[(16, 255), (17, 255), (18, 255), (19, 255)]),
            ("to the unspecified address", &[(16, 0), (19, 0)]),
            ("from a group", &[(12, 239)]),
            ("from itself", &[(12, 127)]),
        ];
        for (what, changes) in v4 {
            assert_eq!(change(udp_v4(1420), changes), None, "{what}");
        }
        assert!(change(udp_v4(1420), &[(9, 1), (20, 8)]).is_some(), "an echo request");
        assert!(change(udp_v4(1420), &[(6, 0x20)]).is_some(), "the first fragment");
        let v6: [(&str, &[(usize, u8)]); 5] = [
            ("an error", &[(6, 58), (40, 2)]),
            ("an error behind options", &[(6, 60), (40, 58), (41, 1), (56, 1)]),
            ("a later fragment", &[(6, 44), (40, 17), (42, 0), (43, 8)]),
            ("to a group", &[(24, 0xff)]),
            ("headers without an end", &[(6, 0), (40, 0), (41, 255)]),
        ];
        for (what, changes) in v6 {
            assert_eq!(change(udp_v6(1420), changes), None, "{what}");
        }
        assert!(change(udp_v6(1420), &[(6, 58), (40, 128)]).is_some(), "an echo request");
        assert!(change(udp_v6(1420), &[(6, 44), (40, 17), (42, 0), (43, 1)]).is_some(), "first");
    }

    proptest! {
        #[test]
        fn answering_any_bytes_does_not_panic(v6: bool, bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let mut packet = if v6 { udp_v6(40) } else { udp_v4(20) };
            packet.extend(&bytes);
            let len = packet.len() as u16;
            if v6 {
                packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
                packet[6] = bytes.first().copied().unwrap_or(0) % 64;
            } else {
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[9] = bytes.first().copied().unwrap_or(0) % 20;
            }
            let _ = (packet_too_big(&packet, 1), packet_too_big(&bytes, 1));
        }
    }
}
