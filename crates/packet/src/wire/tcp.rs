//! The TCP header (RFC 9293 section 3.1).

use std::ops::Range;

use super::get_u32;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of a header with all options.
pub const MAX_HEADER_LEN: usize = 60;

pub const SOURCE_PORT: Range<usize> = 0..2;
pub const DESTINATION_PORT: Range<usize> = 2..4;
pub const SEQUENCE: Range<usize> = 4..8;
pub const ACK: Range<usize> = 8..12;
/// The header's length in words of four bytes, in the upper four bits.
pub const DATA_OFFSET: usize = 12;
/// See [`flags`].
pub const FLAGS: usize = 13;
pub const WINDOW: Range<usize> = 14..16;
pub const CHECKSUM: Range<usize> = 16..18;
pub const URGENT: Range<usize> = 18..20;
pub const OPTIONS: usize = 20;

/// The control bits.
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// Echo of a congestion mark (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// Bytes of the header with its options.
pub fn header_len(header: &[u8]) -> usize {
    usize::from(header[DATA_OFFSET] >> 4) * 4
}

/// Sequence number of the first byte.
pub fn sequence(header: &[u8]) -> u32 {
    get_u32(header, SEQUENCE)
}
