//! Captured messages of WireGuard.

use super::{Direction, Frame};
use crate::pair::Family;

/// An outer datagram, or a super-packet of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its direction relative to the capturing host.
    pub direction: Direction,
    /// Its outer family.
    pub family: Family,
    /// The TOS byte or traffic class of its outer header.
    pub tos: u8,
    /// Its first byte: 1 and 2 are handshake messages, 3 is a cookie reply, 4 data.
    pub kind: u8,
    /// The UDP payload.
    pub payload: Vec<u8>,
}

impl Message {
    /// The messages from or to a UDP port among the frames of an Ethernet device.
    pub fn all(frames: &[Frame], port: u16) -> Vec<Self> {
        frames.iter().filter_map(|frame| Self::of(frame, port)).collect()
    }

    fn of(frame: &Frame, port: u16) -> Option<Self> {
        const UDP: u8 = 17;
        let (link, packet) = frame.bytes.split_at_checked(14)?;
        let (family, tos, protocol, header) = match link[12..] {
            [0x08, 0x00] => {
                let length = usize::from(packet.first()? & 0xf) * 4;
                (Family::V4, *packet.get(1)?, *packet.get(9)?, length)
            }
            [0x86, 0xdd] => {
                let class = packet.first()? << 4 | packet.get(1)? >> 4;
                (Family::V6, class, *packet.get(6)?, 40)
            }
            _ => return None,
        };
        let (udp, payload) = packet.get(header..)?.split_at_checked(8)?;
        let ports = [[udp[0], udp[1]], [udp[2], udp[3]]].map(u16::from_be_bytes);
        let is_ours = protocol == UDP && ports.contains(&port);
        let kind = *payload.first()?;
        is_ours.then(|| Self {
            direction: frame.direction,
            family,
            tos,
            kind,
            payload: payload.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: [u8; 2], packet: &[u8]) -> Frame {
        let mut bytes = vec![0; 12];
        bytes.extend(ethertype);
        bytes.extend(packet);
        Frame { direction: Direction::Out, bytes, segment_size: None, checksum: None }
    }

    #[test]
    fn messages_of_both_families_are_found_by_their_port() {
        let udp = [0xca, 0x6c, 0x00, 0x07, 0, 12, 0, 0, 1, 0, 0, 0];
        let mut v4 = vec![0x45, 0x88, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2];
        v4.extend(udp);
        let mut v6 = vec![0x68, 0x81, 0, 0, 0, 12, 17, 64];
        v6.extend([0; 32]);
        v6.extend(udp);
        for (family, ethertype, packet) in
            [(Family::V4, [0x08, 0x00], &v4), (Family::V6, [0x86, 0xdd], &v6)]
        {
            let frames = [frame(ethertype, packet), frame([0x08, 0x06], packet)];
            let payload = vec![1, 0, 0, 0];
            let message =
                Message { direction: Direction::Out, family, tos: 0x88, kind: 1, payload };
            for port in [51820, 7] {
                assert_eq!(Message::all(&frames, port), std::slice::from_ref(&message));
            }
            assert_eq!(Message::all(&frames, 8), []);
            for cut in 0..packet.len() - 4 {
                assert_eq!(Message::all(&[frame(ethertype, &packet[..cut])], 51820), []);
            }
        }
    }
}
