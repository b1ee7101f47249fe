//! Positions of the fields in packet headers, in one place for all readers and writers.
//!
//! [`IpHeader`] holds the parsed IP headers of a packet. They are parsed once and stay with the packet, so that later steps do not search for the transport header again:
//!
//! ```text
//!   out   queue: flow ---> route: destination, UDP that comes back to the tunnel
//!   in    unwrap: source, ECN ---> coalesce ---> netstack
//! ```
//!
//! Functions that take a header panic if it is shorter than the fixed part of that header. Indexing
//! with the ranges does the same.
#![allow(missing_docs, reason = "a field has the name that its RFC gives it")]

pub mod icmp;
mod ip_header;
pub mod ipv4;
pub mod ipv6;
pub mod protocol;
pub mod tcp;
mod tuple;
pub mod udp;

use std::ops::Range;

pub use ip_header::{Fragment, IpHeader, ParseError, Version};
pub use tuple::FiveTuple;

/// The bytes of a field.
pub fn get<const N: usize>(header: &[u8], field: Range<usize>) -> [u8; N] {
    header[field].try_into().expect("every field's range has the field's length")
}

/// A field of two bytes.
pub fn get_u16(header: &[u8], field: Range<usize>) -> u16 {
    u16::from_be_bytes(get(header, field))
}

/// A field of four bytes.
pub fn get_u32(header: &[u8], field: Range<usize>) -> u32 {
    u32::from_be_bytes(get(header, field))
}

/// Writes a field of two bytes.
pub fn put_u16(header: &mut [u8], field: Range<usize>, value: u16) {
    header[field].copy_from_slice(&value.to_be_bytes());
}

/// Writes a field of four bytes.
pub fn put_u32(header: &mut [u8], field: Range<usize>, value: u32) {
    header[field].copy_from_slice(&value.to_be_bytes());
}
