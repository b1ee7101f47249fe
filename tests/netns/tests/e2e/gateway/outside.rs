//! Finds packets of the outer link that are outside of the tunnel.

use netns::Frame;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// Frames of an Ethernet link that are neither datagrams of the tunnel's port to or from this
/// address nor traffic of the link itself: ARP, neighbour and router discovery, and reports of
/// multicast groups.
pub(super) fn outside_tunnel(frames: &[Frame], port: u16) -> Vec<String> {
    let outside =
        frames.iter().filter(|frame| !is_tunnel(&frame.bytes, port) && !is_of_link(&frame.bytes));
    outside
        .map(|frame| {
            format!("{:?} {:02x?}", frame.direction, &frame.bytes[..frame.bytes.len().min(80)])
        })
        .collect()
}

/// Whether it is a UDP datagram with the port at either end.
pub(super) fn is_tunnel(frame: &[u8], port: u16) -> bool {
    const UDP: u8 = 17;
    let Some((protocol, transport)) = transport(frame) else { return false };
    let ports = transport.first_chunk::<4>();
    let has_port = |[a, b, c, d]: &[u8; 4]| {
        [[*a, *b], [*c, *d]].into_iter().any(|bytes| u16::from_be_bytes(bytes) == port)
    };
    protocol == UDP && ports.is_some_and(has_port)
}

fn is_of_link(frame: &[u8]) -> bool {
    const ARP: [u8; 2] = [0x08, 0x06];
    const HOP_BY_HOP: u8 = 0;
    const ICMPV6: u8 = 58;
    if frame.get(12..ETHERNET) == Some(&ARP) {
        return true;
    }
    match transport(frame) {
        // Reports of groups (RFC 3810) follow a router alert.
        Some((HOP_BY_HOP, rest)) => rest.first() == Some(&ICMPV6),
        // Router and neighbour solicitations and advertisements (RFC 4861).
        Some((ICMPV6, rest)) => rest.first().is_some_and(|kind| (133..=136).contains(kind)),
        _ => false,
    }
}

/// The protocol of an IP packet, and its payload.
fn transport(frame: &[u8]) -> Option<(u8, &[u8])> {
    let packet = frame.get(ETHERNET..)?;
    match packet.first()? >> 4 {
        4 => Some((*packet.get(9)?, packet.get(usize::from(packet[0] & 0xf) * 4..)?)),
        6 => Some((*packet.get(6)?, packet.get(40..)?)),
        _ => None,
    }
}

#[test]
fn dns_and_ping_outside_of_the_tunnel_are_found_in_both_families() {
    let ethernet = |kind: [u8; 2], packet: &[u8]| [&[2; 12][..], &kind, packet].concat();
    let v4 = |protocol: u8, rest: &[u8]| {
        let mut packet =
            vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 10, 2, 0, 2];
        packet.extend(rest);
        ethernet([8, 0], &packet)
    };
    let v6 = |protocol: u8, rest: &[u8]| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 255];
        packet.extend([0; 32]);
        packet.extend(rest);
        ethernet([0x86, 0xdd], &packet)
    };
    let ports = |from: u16, to: u16| [from.to_be_bytes(), to.to_be_bytes()].concat();
    let found = |bytes: Vec<u8>| {
        let direction = netns::Direction::Out;
        let frame = Frame { direction, bytes, segment_size: None, checksum: None };
        outside_tunnel(&[frame], 51820).len()
    };
    for fine in [
        v4(17, &ports(4000, 51820)),
        v6(17, &ports(51820, 4000)),
        ethernet([8, 6], &[0; 28]),
        v6(58, &[135, 0, 0, 0]),
        v6(0, &[58, 0, 5, 2]),
    ] {
        assert_eq!(found(fine.clone()), 0, "{fine:02x?}");
    }
    for leak in [
        v4(17, &ports(4000, 53)),
        v6(17, &ports(4000, 53)),
        v4(6, &ports(51820, 51820)),
        v4(1, &[8, 0, 0, 0]),
        v6(58, &[128, 0, 0, 0]),
        v6(6, &ports(4000, 80)),
    ] {
        assert_eq!(found(leak.clone()), 1, "{leak:02x?}");
    }
}
