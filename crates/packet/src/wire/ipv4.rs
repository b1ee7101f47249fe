//! The IPv4 header (RFC 791 section 3.1).

use std::ops::Range;

use super::get_u16;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The version, and the header's length in words of four bytes.
pub const VERSION_IHL: usize = 0;
/// Six bits of DSCP and two bits of ECN.
pub const TOS: usize = 1;
/// Length of the whole packet.
pub const TOTAL_LEN: Range<usize> = 2..4;
pub const ID: Range<usize> = 4..6;
/// Three flags, and the fragment offset in units of eight bytes.
pub const FRAGMENT: Range<usize> = 6..8;
pub const TTL: usize = 8;
pub const PROTOCOL: usize = 9;
pub const CHECKSUM: Range<usize> = 10..12;
pub const SOURCE: Range<usize> = 12..16;
pub const DESTINATION: Range<usize> = 16..20;
/// Source and destination address.
pub const ADDRESSES: Range<usize> = SOURCE.start..DESTINATION.end;

/// Flags and mask of [`FRAGMENT`].
pub const DONT_FRAGMENT: u16 = 0x4000;
pub const MORE_FRAGMENTS: u16 = 0x2000;
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The first byte of a header without options.
pub const PLAIN: u8 = 0x45;

/// Bytes of the header with its options.
pub fn header_len(header: &[u8]) -> usize {
    usize::from(header[VERSION_IHL] & 0x0f) * 4
}

/// Flags and fragment offset.
pub fn fragment(header: &[u8]) -> u16 {
    get_u16(header, FRAGMENT)
}
