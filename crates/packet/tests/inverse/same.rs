//! Checks that packets that were coalesced and segmented are unchanged: none is lost, each flow is
//! in order, and all bytes are equal except those that a super-packet cannot preserve.

use std::collections::HashSet;

use super::{
    oracle::{Vnet, pseudo, repaired, split},
    spec::slow_checksum,
};

/// An output packet, and whether it shared a super-packet with others.
type Out = (Vec<u8>, bool);

/// Compares the bytes written to a TUN device, each with its number of packets, with the packets
/// that were sent.
pub(super) fn check(sent: &[Vec<u8>], written: &[(Vec<u8>, usize)]) {
    let mut received: Vec<Out> = Vec::new();
    for (written, count) in written {
        let (header, packet) = written.split_at(24);
        let vnet = Vnet::read(header);
        let packets = split(vnet, packet).expect("the kernel takes it");
        assert_eq!(packets.len(), *count);
        if vnet.flags != 0 {
            check_header(vnet, packet, *count);
        }
        received.extend(packets.into_iter().map(|packet| (packet, *count > 1)));
    }
    assert_eq!(received.len(), sent.len(), "as many packets come out as go in");
    let conversations: [Vec<_>; 2] = [
        sent.iter().map(|packet| Conversation::of(packet)).collect(),
        received.iter().map(|(packet, _)| Conversation::of(packet)).collect(),
    ];
    let mut done = HashSet::new();
    for flow in conversations[0].iter().filter(|flow| flow.ports.is_some() && done.insert(*flow)) {
        let [sent_by, came_by] = conversations.each_ref().map(|all| flow.among(all));
        assert_eq!(came_by.len(), sent_by.len(), "of {flow:?}");
        for (sent_at, received_at) in sent_by.into_iter().zip(came_by) {
            assert_eq!(
                received[received_at].0,
                expected(&sent[sent_at], &received[received_at]),
                "of {flow:?}"
            );
        }
    }
    // Packets without a flow stay in order among each other.
    let alone = |packets: &[Conversation]| -> Vec<usize> {
        (0..packets.len()).filter(|at| packets[*at].ports.is_none()).collect()
    };
    let [sent_alone, received_alone] = conversations.each_ref().map(|all| alone(all));
    let sent_alone: Vec<_> = sent_alone.into_iter().map(|at| &sent[at]).collect();
    let received_alone: Vec<_> = received_alone.into_iter().map(|at| &received[at].0).collect();
    assert_eq!(received_alone, sent_alone, "of no flow");
}

/// The kernel's requirements for a packet with an offload.
fn check_header(vnet: Vnet, packet: &[u8], count: usize) {
    let (start, udp) = plain(packet).expect("only TCP and UDP are marked");
    let header = if udp { 8 } else { usize::from(packet[start + 12] >> 4) * 4 };
    let (field, before) = if packet[0] >> 4 == 6 { (4, 40) } else { (2, 0) };
    let len = usize::from(u16::from_be_bytes([packet[field], packet[field + 1]]));
    assert_eq!(len + before, packet.len(), "the length in the IP header");
    assert_eq!(usize::from(vnet.start), start);
    assert_eq!(vnet.offset, if udp { 6 } else { 16 });
    assert_eq!(usize::from(vnet.header_len), start + header);
    let kind = match (count, udp, packet[0] >> 4) {
        (1, ..) => 0,
        (_, true, _) => 5,
        (_, false, 4) => 1,
        (_, false, _) => 4,
    };
    assert_eq!((vnet.flags, vnet.kind), (1, kind));
    assert!(count <= if udp { 64 } else { 128 }, "{count} packets are too many");
    let field = start + usize::from(vnet.offset);
    let given = u16::from_be_bytes([packet[field], packet[field + 1]]);
    assert_eq!(given % 0xffff, pseudo(packet, start, udp) % 0xffff, "the pseudo-header's sum");
}

/// The addresses of a packet, with transport and ports if they are known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conversation {
    version: u8,
    addresses: Vec<u8>,
    ports: Option<(bool, [u8; 4])>,
}

impl Conversation {
    fn of(packet: &[u8]) -> Self {
        let ports = plain(packet).map(|(start, udp)| {
            let ports = packet[start..].first_chunk().expect("a transport has ports");
            (udp, *ports)
        });
        Self { version: packet[0] >> 4, addresses: addresses(packet).to_vec(), ports }
    }

    /// Indices of the packets that must stay in order: those of this flow, and those with the
    /// same addresses and an unknown flow.
    fn among(&self, packets: &[Self]) -> Vec<usize> {
        let same = |other: &Self| other.ports.is_none() || other.ports == self.ports;
        let with = |other: &Self| other.version == self.version && same(other);
        let has = |at: &usize| with(&packets[*at]) && packets[*at].addresses == self.addresses;
        (0..packets.len()).filter(has).collect()
    }
}

fn addresses(packet: &[u8]) -> &[u8] {
    let range = if packet[0] >> 4 == 6 { 8..40 } else { 12..20 };
    packet.get(range).unwrap_or_default()
}

/// Offset of the transport header of a packet that may be coalesced, and whether it is UDP. The
/// packet must be whole, without IPv4 options or extension headers, with correct lengths and a
/// correct IPv4 header checksum.
pub(super) fn plain(packet: &[u8]) -> Option<(usize, bool)> {
    let (start, protocol) = match packet[0] >> 4 {
        4 => {
            let header = packet.get(..20).filter(|header| header[0] == 0x45)?;
            let whole = header[6] & 0xbf == 0 && header[7] == 0;
            (whole && slow_checksum(header) == 0).then_some((20, header[9]))?
        }
        6 => (40, *packet.get(6)?),
        _ => return None,
    };
    let transport = packet.get(start..)?;
    match protocol {
        6 => {
            let len = usize::from(transport.get(12)? >> 4) * 4;
            (len >= 20 && len <= transport.len()).then_some((start, false))
        }
        17 => {
            let len = u16::from_be_bytes([*transport.get(4)?, *transport.get(5)?]);
            let right = usize::from(len) == transport.len() && transport.len() >= 8;
            right.then_some((start, true))
        }
        _ => None,
    }
}

/// The expected output for a packet. Transport checksums are correct. UDP without a checksum gets
/// one if it was coalesced. Without fragmentation the identification is meaningless (RFC 6864
/// section 4.1).
fn expected(sent: &[u8], (received, merged): &Out) -> Vec<u8> {
    let Some((start, udp)) = plain(sent) else { return sent.to_vec() };
    if udp && !merged && sent[start + 6..start + 8] == [0, 0] {
        return sent.to_vec();
    }
    let mut packet = repaired(sent, start, udp);
    let atomic = packet[0] >> 4 == 4 && packet[6] & 0x40 != 0;
    if *merged && atomic {
        packet[4..6].copy_from_slice(&received[4..6]);
        packet[10..12].fill(0);
        let checksum = slow_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}
