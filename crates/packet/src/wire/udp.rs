//! The UDP header (RFC 768).

use std::ops::Range;

pub const HEADER_LEN: usize = 8;

pub const SOURCE_PORT: Range<usize> = 0..2;
pub const DESTINATION_PORT: Range<usize> = 2..4;
/// Length of header and payload.
pub const LENGTH: Range<usize> = 4..6;
/// Zero means no checksum.
pub const CHECKSUM: Range<usize> = 6..8;
