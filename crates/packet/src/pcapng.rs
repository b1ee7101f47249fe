//! Writes captured packets as a pcapng section (draft-ietf-opsawg-pcapng), one block at a time.
//!
//! ```text
//!   section | interface | packet | packet | ... | statistics
//! ```
//!
//! A section has one interface. Its packets begin with the IP header, and times are in nanoseconds.
//! All fields are little-endian, as declared in the section's first block.

use std::time::Duration;

/// Block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// `LINKTYPE_RAW`: the first four bits distinguish IPv4 and IPv6.
const LINK_TYPE: u16 = 101;
/// A power of ten: nanoseconds.
const RESOLUTION: u8 = 9;

/// Option codes. The first is common to all blocks; the others belong to one type of block.
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROPPED: u16 = 4;
const STATISTICS_START: u16 = 2;
const STATISTICS_END: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

/// Bytes that every block has: type, length, length.
const FRAME: usize = 12;
/// Bytes of a packet's block before the packet.
const PACKET_HEAD: usize = 20;
/// Bytes of an option's code and length. The end of the options has the same length.
const OPTION_HEAD: usize = 4;
/// The longest comment, in bytes. Longer comments are truncated.
const COMMENT_MAX: usize = 1024;

/// Bytes that [`parse_block_header`] needs.
pub const BLOCK_HEADER_LEN: usize = 8;
/// Upper bound for the length of the blocks written here, in bytes.
pub const MAX_BLOCK_LEN: usize = 128 * 1024;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the host.
    Inbound,
    /// From the host.
    Outbound,
}

/// A captured packet.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Time of the capture, since the Unix epoch.
    pub at: Duration,
    pub direction: Direction,
    /// The whole packet.
    pub packet: &'a [u8],
    /// Number of packets since the last block that were not captured.
    pub dropped: u64,
    /// A comment. None is written if it is empty.
    pub comment: &'a str,
}

/// Statistics of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Start time, since the Unix epoch.
    pub started: Duration,
    /// End time, since the Unix epoch.
    pub finished: Duration,
    /// Number of packets that passed the interface.
    pub received: u64,
    /// Number of these packets that were not captured.
    pub dropped: u64,
}

/// The type of a block, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    Packet(usize),
    Statistics(usize),
    /// A block of another type.
    Other(usize),
}

/// Starts a section with the name of the `application`.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block_of(out, SECTION, |out| {
        put_u32(out, BYTE_ORDER);
        put_u16(out, 1);
        put_u16(out, 0);
        // The length of the section is not known yet.
        put_u64(out, u64::MAX);
        option(out, SECTION_APPLICATION, application.as_bytes());
        end_options(out);
    });
}

/// Writes the interface. Packets are truncated to `snaplen` bytes; 0 means unlimited.
pub fn interface(out: &mut Vec<u8>, name: &str, description: &str, snaplen: u32) {
    block_of(out, INTERFACE, |out| {
        put_u16(out, LINK_TYPE);
        put_u16(out, 0);
        put_u32(out, snaplen);
        option(out, INTERFACE_NAME, name.as_bytes());
        option(out, INTERFACE_DESCRIPTION, description.as_bytes());
        option(out, INTERFACE_RESOLUTION, &[RESOLUTION]);
        end_options(out);
    });
}

/// Upper bound for the bytes that [`packet`] appends for a packet truncated to `kept` bytes with a
/// comment of `comment` bytes.
pub fn max_packet_block_len(kept: usize, comment: usize) -> usize {
    let (flags, dropped, end) = (OPTION_HEAD + 4, OPTION_HEAD + 8, OPTION_HEAD);
    let comment = OPTION_HEAD + comment.min(COMMENT_MAX).next_multiple_of(4);
    FRAME + PACKET_HEAD + kept.next_multiple_of(4) + flags + dropped + comment + end
}

/// Writes a packet, truncated to `snaplen` bytes.
pub fn packet(out: &mut Vec<u8>, captured: CapturedPacket<'_>, snaplen: usize) {
    let CapturedPacket { at, direction, packet, dropped, comment } = captured;
    let kept = &packet[..packet.len().min(snaplen)];
    block_of(out, PACKET, |out| {
        // The only interface of the section.
        put_u32(out, 0);
        time(out, at);
        put_u32(out, kept.len() as u32);
        put_u32(out, packet.len() as u32);
        out.extend_from_slice(kept);
        pad(out);
        let flags: u32 = match direction {
            Direction::Inbound => 0b01,
            Direction::Outbound => 0b10,
        };
        option(out, PACKET_FLAGS, &flags.to_le_bytes());
        if dropped > 0 {
            option(out, PACKET_DROPPED, &dropped.to_le_bytes());
        }
        if !comment.is_empty() {
            let cut = comment.floor_char_boundary(COMMENT_MAX);
            option(out, COMMENT, &comment.as_bytes()[..cut]);
        }
        end_options(out);
    });
}

/// Writes the statistics. They follow the packets.
pub fn statistics(out: &mut Vec<u8>, statistics: Statistics) {
    let Statistics { started, finished, received, dropped } = statistics;
    block_of(out, STATISTICS, |out| {
        put_u32(out, 0);
        time(out, finished);
        for (code, at) in [(STATISTICS_START, started), (STATISTICS_END, finished)] {
            put_u16(out, code);
            put_u16(out, 8);
            time(out, at);
        }
        option(out, STATISTICS_RECEIVED, &received.to_le_bytes());
        option(out, STATISTICS_DROPPED, &dropped.to_le_bytes());
        end_options(out);
    });
}

/// Reads the header of a block from at least [`BLOCK_HEADER_LEN`] bytes. Returns `None` if the
/// length is not that of a block of this module.
pub fn parse_block_header(head: &[u8]) -> Option<Block> {
    let len = word_at(head, 4)? as usize;
    if !(FRAME..=MAX_BLOCK_LEN).contains(&len) || !len.is_multiple_of(4) {
        return None;
    }
    Some(match word_at(head, 0)? {
        PACKET => Block::Packet(len),
        STATISTICS => Block::Statistics(len),
        _ => Block::Other(len),
    })
}

impl Statistics {
    /// Reads a complete block of statistics. Returns `None` if it is malformed.
    pub fn parse(block: &[u8]) -> Option<Self> {
        let mut read = Self::default();
        let mut options = block.get(BLOCK_HEADER_LEN + 12..block.len().checked_sub(4)?)?;
        while let [code, code_high, len, len_high, rest @ ..] = options {
            let code = u16::from_le_bytes([*code, *code_high]);
            let len = usize::from(u16::from_le_bytes([*len, *len_high]));
            let value = rest.get(..len)?;
            match code {
                0 => break,
                STATISTICS_START => read.started = time_of(value)?,
                STATISTICS_END => read.finished = time_of(value)?,
                STATISTICS_RECEIVED => read.received = u64::from_le_bytes(value.try_into().ok()?),
                STATISTICS_DROPPED => read.dropped = u64::from_le_bytes(value.try_into().ok()?),
                _ => {}
            }
            options = rest.get(len.next_multiple_of(4)..)?;
        }
        Some(read)
    }
}

fn block_of(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_u32(out, kind);
    put_u32(out, 0);
    body(out);
    let len = (out.len() + 4 - start) as u32;
    put_u32(out, len);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    put_u16(out, code);
    put_u16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out);
}

fn end_options(out: &mut Vec<u8>) {
    put_u32(out, 0);
}

/// Blocks and their fields are aligned to four bytes.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The upper put_u16 comes first, whatever the byte order.
fn time(out: &mut Vec<u8>, at: Duration) {
    let nanos = at.as_nanos() as u64;
    put_u32(out, (nanos >> 32) as u32);
    put_u32(out, nanos as u32);
}

fn time_of(value: &[u8]) -> Option<Duration> {
    let (high, low) = (word_at(value, 0)?, word_at(value, 4)?);
    Some(Duration::from_nanos(u64::from(high) << 32 | u64::from(low)))
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: Duration = Duration::new(1_700_000_000, 123_456_789);

    fn captured(packet: &[u8]) -> CapturedPacket<'_> {
        CapturedPacket { at: AT, direction: Direction::Inbound, packet, dropped: 0, comment: "" }
    }

    /// Splits a section into blocks, by type and body.
    fn blocks(mut section: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut blocks = Vec::new();
        while !section.is_empty() {
            let len = word_at(section, 4).unwrap() as usize;
            let (this, rest) = section.split_at(len);
            assert_eq!(word_at(this, len - 4), Some(len as u32), "both lengths are the same");
            blocks.push((word_at(this, 0).unwrap(), this[8..len - 4].to_vec()));
            section = rest;
        }
        blocks
    }

    #[test]
    fn a_section_has_the_bytes_of_the_draft() {
        let mut out = Vec::new();
        section(&mut out, "linerate 1");
        interface(&mut out, "wg0", "inside", 96);
        let all = [
            b"\x0a\x0d\x0d\x0a\x30\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0".as_slice(),
            b"\xff\xff\xff\xff\xff\xff\xff\xff\x04\0\x0a\0linerate 1\0\0\0\0\0\0\x30\0\0\0",
            b"\x01\0\0\0\x34\0\0\0\x65\0\0\0\x60\0\0\0\x02\0\x03\0wg0\0",
            b"\x03\0\x06\0inside\0\0\x09\0\x01\0\x09\0\0\0\0\0\0\0\x34\0\0\0",
        ]
        .concat();
        assert_eq!(out, all);
    }

    #[test]
    fn a_packet_is_truncated_to_the_snaplen_and_has_all_options() {
        let mut out = Vec::new();
        packet(&mut out, captured(b"12345"), 100);
        let cut = CapturedPacket {
            direction: Direction::Outbound,
            dropped: 7,
            comment: "peer a",
            ..captured(b"12345")
        };
        packet(&mut out, cut, 2);
        let [(PACKET, whole), (PACKET, cut)] = &blocks(&out)[..] else { panic!("{out:?}") };
        let nanos = AT.as_nanos() as u64;
        let time = [(nanos >> 32) as u32, nanos as u32].map(u32::to_le_bytes).concat();
        let head = [b"\0\0\0\0".as_slice(), &time].concat();
        let expected = b"\x05\0\0\0\x05\0\0\x0012345\0\0\0\x02\0\x04\0\x01\0\0\0\0\0\0\0";
        assert_eq!(*whole, [head.clone(), expected.to_vec()].concat());
        let expected = b"\x02\0\0\0\x05\0\0\x0012\0\0\x02\0\x04\0\x02\0\0\0\
            \x04\0\x08\0\x07\0\0\0\0\0\0\0\x01\0\x06\0peer a\0\0\0\0\0\0";
        assert_eq!(*cut, [head, expected.to_vec()].concat());
    }

    #[test]
    fn statistics_round_trip_and_truncated_ones_are_refused() {
        let written = Statistics { started: AT, finished: AT * 2, received: u64::MAX, dropped: 3 };
        let mut out = Vec::new();
        statistics(&mut out, written);
        assert_eq!(parse_block_header(&out), Some(Block::Statistics(out.len())));
        assert_eq!(Statistics::parse(&out), Some(written));
        for len in 0..BLOCK_HEADER_LEN {
            assert_eq!(parse_block_header(&out[..len]), None);
        }
        assert_eq!(Statistics::parse(&out[..20]), None);
        for len in [0_u32, 8, 13, MAX_BLOCK_LEN as u32 + 4] {
            out[4..8].copy_from_slice(&len.to_le_bytes());
            assert_eq!(parse_block_header(&out), None, "a length of {len}");
        }
    }

    proptest! {
        #[test]
        fn no_packet_block_exceeds_the_announced_length(
            len in 0usize..300, snaplen in 0usize..300, dropped: bool, comment in ".{0,40}",
        ) {
            let bytes = vec![1; len];
            let captured = CapturedPacket { dropped: dropped.into(), comment: &comment, ..captured(&bytes) };
            let mut out = Vec::new();
            packet(&mut out, captured, snaplen);
            prop_assert!(out.len() <= max_packet_block_len(len.min(snaplen), comment.len()));
            prop_assert_eq!(parse_block_header(&out), Some(Block::Packet(out.len())));
        }

        #[test]
        fn the_longest_packet_with_the_longest_comment_is_a_valid_block(extra in 0usize..3000) {
            let bytes = vec![1; crate::MAX_PACKET];
            let comment = "ä".repeat(extra);
            let mut out = Vec::new();
            packet(&mut out, CapturedPacket { comment: &comment, dropped: 1, ..captured(&bytes) }, usize::MAX);
            prop_assert_eq!(parse_block_header(&out), Some(Block::Packet(out.len())));
            prop_assert!(out.len() <= max_packet_block_len(bytes.len(), comment.len()));
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (parse_block_header(&bytes), Statistics::parse(&bytes));
        }
    }
}
