//! Splits super-packets into packets byte by byte, as RFC 791, 768, 8200 and 9293 and segmentation
//! offload require. It shares no code with the splitter under test.

use super::Frame;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Offsets of the parts of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// 4 or 6.
    pub version: u8,
    /// Protocol behind the IP header, and behind an IPv6 fragment header.
    pub protocol: u8,
    /// Offset of the transport header.
    pub transport: usize,
    /// Identification of a fragment.
    pub fragment: Option<u32>,
}

impl Layout {
    /// Reads the IP header.
    ///
    /// # Panics
    /// If it is invalid.
    pub fn of(packet: &[u8]) -> Self {
        let version = packet[0] >> 4;
        if version == 4 {
            let is_fragment = packet[6] & 0x3f != 0 || packet[7] != 0;
            let id = u32::from(u16::from_be_bytes([packet[4], packet[5]]));
            return Self {
                version,
                protocol: packet[9],
                transport: usize::from(packet[0] & 0x0f) * 4,
                fragment: is_fragment.then_some(id),
            };
        }
        assert_eq!(version, 6, "not an IP packet: {packet:02x?}");
        if packet[6] != 44 {
            return Self { version, protocol: packet[6], transport: 40, fragment: None };
        }
        let id = u32::from_be_bytes([packet[44], packet[45], packet[46], packet[47]]);
        Self { version, protocol: packet[40], transport: 48, fragment: Some(id) }
    }

    /// Source and destination.
    pub fn addresses(self, packet: &[u8]) -> &[u8] {
        if self.version == 4 { &packet[12..20] } else { &packet[8..40] }
    }

    /// Offset of the payload.
    pub fn payload(self, packet: &[u8]) -> usize {
        let header = match self.protocol {
            TCP => usize::from(packet[self.transport + 12] >> 4) * 4,
            UDP => 8,
            protocol => panic!("protocol {protocol} is not used by the tests"),
        };
        self.transport + header
    }
}

/// The packets of a frame, with complete checksums.
///
/// # Panics
/// If it is not a frame of TCP or UDP that the kernel may segment.
pub fn split(frame: &Frame) -> Vec<Vec<u8>> {
    let bytes = &frame.bytes;
    let Some(size) = frame.segment_size else {
        let mut packet = bytes.clone();
        if let Some((start, offset)) = frame.checksum {
            // The field contains the sum of the pseudo-header.
            let sum = !sum(&packet[start..]);
            store(&mut packet, start + offset, if sum == 0 && offset == 6 { 0xffff } else { sum });
        }
        with_one_zero(&mut packet);
        return vec![packet];
    };
    let layout = Layout::of(bytes);
    assert!(layout.fragment.is_none() && frame.checksum.is_some(), "{frame:?}");
    let (header, payload) = bytes.split_at(layout.payload(bytes));
    let count = payload.len().div_ceil(size);
    let pieces = payload.chunks(size).enumerate();
    pieces
        .map(|(index, piece)| segment(layout, header, piece, index, index + 1 == count, size))
        .collect()
}

/// Normalizes a TCP checksum of zero, which may be written as zero or as all ones; the kernel
/// writes all ones (net/core/dev.c, `skb_checksum_help`).
fn with_one_zero(packet: &mut [u8]) {
    let layout = Layout::of(packet);
    let place = layout.transport + 16;
    let is_tcp = layout.protocol == TCP && layout.fragment.is_none();
    if is_tcp && packet.get(place..place + 2) == Some(&[0xff, 0xff]) {
        store(packet, place, 0);
    }
}

fn segment(
    layout: Layout,
    header: &[u8],
    piece: &[u8],
    index: usize,
    last: bool,
    size: usize,
) -> Vec<u8> {
    const FIN_PSH: u8 = 0x09;
    const CWR: u8 = 0x80;
    let mut packet = [header, piece].concat();
    let (len, at) = (packet.len(), layout.transport);
    if layout.version == 4 {
        let id = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(index as u16);
        store(&mut packet, 2, len as u16);
        store(&mut packet, 4, id);
        store(&mut packet, 10, 0);
        let sum = !sum(&packet[..at]);
        store(&mut packet, 10, sum);
    } else {
        store(&mut packet, 4, (len - 40) as u16);
    }
    if layout.protocol == TCP {
        let number =
            u32::from_be_bytes([packet[at + 4], packet[at + 5], packet[at + 6], packet[at + 7]]);
        let number = number.wrapping_add((index * size) as u32);
        packet[at + 4..at + 8].copy_from_slice(&number.to_be_bytes());
        if !last {
            packet[at + 13] &= !FIN_PSH;
        }
        if index > 0 {
            packet[at + 13] &= !CWR;
        }
    } else {
        store(&mut packet, at + 4, (len - at) as u16);
    }
    let place = at + if layout.protocol == TCP { 16 } else { 6 };
    store(&mut packet, place, 0);
    let sum = !transport_sum(layout, &packet);
    store(&mut packet, place, if sum == 0 && layout.protocol == UDP { 0xffff } else { sum });
    packet
}

/// Whether lengths and checksums of a complete packet are right; a UDP checksum may only be absent
/// over IPv4.
pub fn is_sound(packet: &[u8]) -> bool {
    let layout = Layout::of(packet);
    let field = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let ip = match layout.version {
        4 => field(2) == packet.len() && sum(&packet[..usize::from(packet[0] & 15) * 4]) == 0xffff,
        _ => field(4) + 40 == packet.len(),
    };
    if layout.fragment.is_some() {
        return ip;
    }
    let at = layout.transport;
    let transport = match layout.protocol {
        UDP => field(at + 4) == packet.len() - at,
        _ => packet[at + 12] >> 4 >= 5 && layout.payload(packet) <= packet.len(),
    };
    let no_sum = layout.version == 4 && layout.protocol == UDP && field(at + 6) == 0;
    ip && transport && (no_sum || transport_sum(layout, packet) == 0xffff)
}

/// The sum of pseudo-header, transport header and payload.
fn transport_sum(layout: Layout, packet: &[u8]) -> u16 {
    let mut text = layout.addresses(packet).to_vec();
    let transport = &packet[layout.transport..];
    text.extend((transport.len() as u32).to_be_bytes());
    text.extend([0, 0, 0, layout.protocol]);
    text.extend(transport);
    sum(&text)
}

/// The one's complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += word(pair);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn store(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Direction;

    /// A super-packet as from the kernel, with sums of the pseudo-header only.
    fn frame(protocol: u8, payload: usize, size: usize) -> Frame {
        let transport = match protocol {
            TCP => {
                vec![0, 1, 0, 2, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0]
            }
            _ => vec![0, 1, 0, 2, 0, 0, 0, 0],
        };
        let len = (20 + transport.len() + payload) as u16;
        let mut bytes =
            vec![0x45, 0, (len >> 8) as u8, len as u8, 0xff, 0xff, 0x40, 0, 64, protocol];
        bytes.extend([0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        bytes.extend(transport);
        bytes.extend((0..payload).map(|at| at as u8));
        let offset = if protocol == TCP { 16 } else { 6 };
        let checksum = Some((20, offset));
        Frame { direction: Direction::Out, bytes, segment_size: Some(size), checksum }
    }

    #[test]
    fn both_forms_of_a_zero_tcp_checksum_are_equal() {
        let mut packet = split(&frame(TCP, 100, 300)).remove(0);
        // Moving the sum into the urgent pointer leaves a checksum of zero.
        packet.copy_within(36..38, 38);
        for written in [[0, 0], [0xff, 0xff]] {
            packet[36..38].copy_from_slice(&written);
            assert!(is_sound(&packet));
            let bytes = packet.clone();
            let frame =
                Frame { direction: Direction::Out, bytes, segment_size: None, checksum: None };
            assert_eq!(split(&frame)[0][36..38], [0, 0]);
        }
    }

    #[test]
    fn segments_are_valid_and_contain_the_whole_payload() {
        for protocol in [TCP, UDP] {
            let frame = frame(protocol, 1000, 300);
            let packets = split(&frame);
            assert_eq!(packets.len(), 4);
            let at = Layout::of(&frame.bytes).payload(&frame.bytes);
            let payload: Vec<u8> =
                packets.iter().flat_map(|packet| packet[at..].to_vec()).collect();
            assert_eq!(payload, frame.bytes[at..]);
            for packet in &packets {
                assert!(is_sound(packet), "{packet:02x?}");
                // These bytes select the rules for the others.
                for place in (1..packet.len()).filter(|place| *place != 9) {
                    let mut other = packet.clone();
                    other[place] ^= 0x10;
                    assert!(!is_sound(&other), "byte {place} of {packet:02x?}");
                }
            }
        }
    }

    #[test]
    fn sequence_numbers_wrap_and_flags_are_on_the_first_or_last_segment() {
        let packets = split(&frame(TCP, 600, 300));
        let [first, last] = [&packets[0], &packets[1]];
        assert_eq!((&first[4..6], &last[4..6]), (&[0xff, 0xff][..], &[0, 0][..]));
        assert_eq!(last[24..28], (0xffff_fff0u32.wrapping_add(300)).to_be_bytes());
        assert_eq!((first[33], last[33]), (0x90, 0x19), "CWR, then FIN and PSH");
    }
}
