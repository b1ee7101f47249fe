//! The IPv6 header (RFC 8200 section 3) and its extension headers (section 4).

use std::ops::Range;

use super::get_u16;

pub const HEADER_LEN: usize = 40;

/// The version, the traffic class (in two bytes), and the flow label.
pub const VERSION_CLASS_LABEL: Range<usize> = 0..4;
/// Length of everything after this header.
pub const PAYLOAD_LEN: Range<usize> = 4..6;
pub const NEXT_HEADER: usize = 6;
pub const HOP_LIMIT: usize = 7;
pub const SOURCE: Range<usize> = 8..24;
pub const DESTINATION: Range<usize> = 24..40;
/// Source and destination address.
pub const ADDRESSES: Range<usize> = SOURCE.start..DESTINATION.end;

/// The extension headers that may precede the transport header. Those of IPsec are not included.
pub mod extension {
    use std::ops::Range;

    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const DESTINATION: u8 = 60;

    pub const NEXT_HEADER: usize = 0;
    /// In units of eight bytes, without the first eight.
    pub const LEN: usize = 1;

    /// Length of a fragment header.
    pub const FRAGMENT_LEN: usize = 8;
    /// In a fragment header: the offset in units of eight bytes, and three flag bits.
    pub const OFFSET: Range<usize> = 2..4;
    pub const OFFSET_MASK: u16 = 0xfff8;
}

/// Six bits of DSCP and two bits of ECN.
pub fn traffic_class(header: &[u8]) -> u8 {
    (get_u16(header, 0..2) >> 4) as u8
}
