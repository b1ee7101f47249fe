//! The answer to a packet that is too long: "fragmentation needed" (RFC 1191 section 4) or
//! "packet too big" (RFC 4443 section 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    checksum::{add, sum},
    ip::IpHeader,
};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const ICMP_HEADER: usize = 8;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
/// The longest answers: what every host takes (RFC 1812 section 4.3.2.3, RFC 4443 section
/// 2.4 c).
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;
/// Precedence "internetwork control", as a router's errors have (RFC 1812 section 4.3.2.5).
const TOS: u8 = 0xc0;

/// Tells the sender of `packet` that packets there may have `mtu` bytes. It comes from
/// the packet's destination: that is behind the tunnel, so no filter by source finds it
/// where it should not come from, and it needs no address of our own. `None` where
/// nothing may be answered: to an error, a fragment but the first, a packet to or from
/// other than one host (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 e).
pub fn packet_too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let header = IpHeader::parse(packet).ok()?;
    let (from, to) = (header.destination, header.source);
    if !is_one_host(from) || !is_one_host(to) {
        return None;
    }
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            may_answer_v4(packet).then(|| answer_v4(packet, from, to, mtu))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            may_answer_v6(packet)?.then(|| answer_v6(packet, from, to, mtu))
        }
        _ => None,
    }
}

/// Whether routers must not fragment `packet`: all of IPv6, IPv4 with the DF bit.
pub fn is_unfragmentable(packet: &[u8]) -> bool {
    const DF: u8 = 0x40;
    packet.first().is_some_and(|first| first >> 4 == 6)
        || packet.get(6).is_some_and(|fragment| fragment & DF != 0)
}

fn is_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

fn may_answer_v4(packet: &[u8]) -> bool {
    let header_len = usize::from(packet[0] & 0x0f) * 4;
    let is_later_fragment = packet[6] & 0x1f != 0 || packet[7] != 0;
    // Echo, timestamp, information and their like (RFC 1122 section 3.2.2).
    let is_error = packet[9] == ICMP
        && packet.get(header_len).is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12));
    !is_later_fragment && !is_error
}

fn may_answer_v6(packet: &[u8]) -> Option<bool> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let (mut next, mut at) = (packet[6], IPV6_HEADER);
    loop {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let len = 8 * (1 + usize::from(*packet.get(at + 1)?));
                (next, at) = (*packet.get(at)?, at + len);
            }
            FRAGMENT => {
                let offset = u16::from_be_bytes([*packet.get(at + 2)?, *packet.get(at + 3)?]);
                if offset & 0xfff8 != 0 {
                    return Some(false);
                }
                (next, at) = (*packet.get(at)?, at + 8);
            }
            ICMP6 => return Some(*packet.get(at)? >= 128),
            _ => return Some(true),
        }
    }
}

fn answer_v4(packet: &[u8], from: Ipv4Addr, to: Ipv4Addr, mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(MOST_V4 - IPV4_HEADER - ICMP_HEADER)];
    let len = (IPV4_HEADER + ICMP_HEADER + quoted.len()) as u16;
    let mut answer = vec![0x45, TOS];
    answer.extend(len.to_be_bytes());
    answer.extend([0, 0, 0x40, 0, 64, ICMP, 0, 0]);
    answer.extend(from.octets());
    answer.extend(to.octets());
    let checksum = !sum(&answer);
    answer[10..12].copy_from_slice(&checksum.to_be_bytes());
    answer.extend([3, 4, 0, 0, 0, 0]);
    answer.extend(mtu.to_be_bytes());
    answer.extend(quoted);
    let checksum = !sum(&answer[IPV4_HEADER..]);
    answer[IPV4_HEADER + 2..IPV4_HEADER + 4].copy_from_slice(&checksum.to_be_bytes());
    answer
}

fn answer_v6(packet: &[u8], from: Ipv6Addr, to: Ipv6Addr, mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(MOST_V6 - IPV6_HEADER - ICMP_HEADER)];
    let len = (ICMP_HEADER + quoted.len()) as u16;
    let mut answer = vec![0x60 | TOS >> 4, TOS << 4, 0, 0];
    answer.extend(len.to_be_bytes());
    answer.extend([ICMP6, 64]);
    answer.extend(from.octets());
    answer.extend(to.octets());
    answer.extend([2, 0, 0, 0]);
    answer.extend(u32::from(mtu).to_be_bytes());
    answer.extend(quoted);
    let pseudo = add(sum(&answer[8..IPV6_HEADER]), add(len, ICMP6.into()));
    let checksum = !add(pseudo, sum(&answer[IPV6_HEADER..]));
    answer[IPV6_HEADER + 2..IPV6_HEADER + 4].copy_from_slice(&checksum.to_be_bytes());
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
    fn an_answer_tells_the_mtu_and_quotes_what_it_answers() {
        for len in [28, 547, 548, 549, 1420, 60_000] {
            let packet = udp_v4(len);
            let answer = packet_too_big(&packet, 1300).unwrap();
            let header = IpHeader::parse(&answer).unwrap();
            assert_eq!(header.total_len, answer.len());
            assert_eq!(
                [header.source, header.destination],
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
                [header.source, header.destination],
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
    fn errors_fragments_and_groups_are_not_answered() {
        let change = |mut packet: Vec<u8>, changes: &[(usize, u8)]| {
            changes.iter().for_each(|(at, byte)| packet[*at] = *byte);
            packet_too_big(&packet, 1300)
        };
        let v4: [(&str, &[(usize, u8)]); 7] = [
            ("an error", &[(9, 1), (20, 3)]),
            ("a later fragment", &[(7, 9)]),
            ("to a group", &[(16, 224)]),
            ("to all", &[(16, 255), (17, 255), (18, 255), (19, 255)]),
            ("to nobody", &[(16, 0), (19, 0)]),
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
        fn no_bytes_make_it_panic(v6: bool, bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
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
