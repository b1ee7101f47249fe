//! Whether what was coalesced and split again is what went in: nothing lost, no
//! flow out of order, every byte the same but for what a super-packet cannot keep.

use super::{
    oracle::{Vnet, pseudo, repaired, split},
    spec::slow_checksum,
};

/// A packet that came out, and whether it shared its super-packet with others.
type Out = (Vec<u8>, bool);

/// Holds what was written to a TUN, each with the number of packets it carries,
/// against the packets that were sent.
pub fn check(sent: &[Vec<u8>], written: &[(Vec<u8>, usize)]) {
    let mut came: Vec<Out> = Vec::new();
    for (written, count) in written {
        let (header, packet) = written.split_at(10);
        let vnet = Vnet::read(header);
        let packets = split(vnet, packet).expect("the kernel takes it");
        assert_eq!(packets.len(), *count);
        if vnet.flags != 0 {
            check_header(vnet, packet, *count);
        }
        came.extend(packets.into_iter().map(|packet| (packet, *count > 1)));
    }
    assert_eq!(came.len(), sent.len(), "as many packets come out as go in");
    for flow in flows(sent) {
        let sent: Vec<_> = sent.iter().filter(|packet| flow.has(packet)).collect();
        let came: Vec<_> = came.iter().filter(|(packet, _)| flow.has(packet)).collect();
        assert_eq!(came.len(), sent.len(), "of {flow:?}");
        for (sent, came) in sent.into_iter().zip(came) {
            assert_eq!(came.0, expected(sent, came), "of {flow:?}");
        }
    }
}

/// What the kernel asks of a packet with work left to do.
fn check_header(vnet: Vnet, packet: &[u8], count: usize) {
    let (start, udp) = plain(packet).expect("only TCP and UDP are marked");
    let header = if udp { 8 } else { usize::from(packet[start + 12] >> 4) * 4 };
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

/// A conversation that must stay in order: a flow, and between the same addresses
/// everything of which the flow is not known.
#[derive(Debug, PartialEq, Eq)]
struct Flow {
    version: u8,
    addresses: Vec<u8>,
    udp: bool,
    ports: [u8; 4],
}

impl Flow {
    fn of(packet: &[u8]) -> Option<Self> {
        let (start, udp) = plain(packet)?;
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| packet[start + at]);
        let addresses = addresses(packet).to_vec();
        Some(Self { version: packet[0] >> 4, addresses, udp, ports: [a, b, c, d] })
    }

    fn has(&self, packet: &[u8]) -> bool {
        match Self::of(packet) {
            Some(flow) => flow == *self,
            None => {
                packet[0] >> 4 == self.version && addresses(packet) == self.addresses.as_slice()
            }
        }
    }
}

fn flows(packets: &[Vec<u8>]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for flow in packets.iter().filter_map(|packet| Flow::of(packet)) {
        if !flows.contains(&flow) {
            flows.push(flow);
        }
    }
    flows
}

fn addresses(packet: &[u8]) -> &[u8] {
    let range = if packet[0] >> 4 == 6 { 8..40 } else { 12..20 };
    packet.get(range).unwrap_or_default()
}

/// Where the transport of a packet begins that may be coalesced, and whether it is
/// UDP: whole, without IPv4 options or extension headers, lengths and the IPv4
/// header's checksum right.
pub fn plain(packet: &[u8]) -> Option<(usize, bool)> {
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

/// What a packet is to come out as. Transport checksums are right afterwards; UDP
/// without checksum has one if it came with others; where there is no
/// fragmentation the identification says nothing (RFC 6864 section 4.1).
fn expected(sent: &[u8], (came, merged): &Out) -> Vec<u8> {
    let Some((start, udp)) = plain(sent) else { return sent.to_vec() };
    if udp && !merged && sent[start + 6..start + 8] == [0, 0] {
        return sent.to_vec();
    }
    let mut packet = repaired(sent, start, udp);
    let atomic = packet[0] >> 4 == 4 && packet[6] & 0x40 != 0;
    if *merged && atomic {
        packet[4..6].copy_from_slice(&came[4..6]);
        packet[10..12].fill(0);
        let checksum = slow_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}
