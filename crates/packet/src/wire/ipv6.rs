//! The IPv6 header (RFC 8200 section 3) and its extension headers (section 4).

use std::ops::Range;

use super::get_u16;

pub const HEADER_LEN: usize = 40;

/// The version, the traffic class across two bytes, and the flow label.
pub const VERSION_CLASS_LABEL: Range<usize> = 0..4;
/// Of all that stands behind this header.
pub const PAYLOAD_LEN: Range<usize> = 4..6;
pub const NEXT_HEADER: usize = 6;
pub const HOP_LIMIT: usize = 7;
pub const SOURCE: Range<usize> = 8..24;
pub const DESTINATION: Range<usize> = 24..40;
/// Both of them.
pub const ADDRESSES: Range<usize> = SOURCE.start..DESTINATION.end;

/// The extension headers that stand between the IPv6 header and the protocol's, and that
/// everybody may read.
pub mod extension {
    use std::ops::Range;

    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const DESTINATION: u8 = 60;

    pub const NEXT_HEADER: usize = 0;
    /// In words of eight bytes, the first not counted.
    pub const LEN: usize = 1;

    /// A fragment header has this length.
    pub const FRAGMENT_LEN: usize = 8;
    /// Of a fragment header: the offset in words of eight bytes, and three bits.
    pub const OFFSET: Range<usize> = 2..4;
    pub const OFFSET_MASK: u16 = 0xfff8;
}

/// Six bits of DSCP, two of ECN.
pub fn traffic_class(header: &[u8]) -> u8 {
    (get_u16(header, 0..2) >> 4) as u8
}
