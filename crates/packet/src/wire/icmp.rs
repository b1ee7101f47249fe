//! Messages of ICMP (RFC 792) and ICMPv6 (RFC 4443). Their first eight bytes have the same layout.

use std::ops::Range;

/// Bytes of a message before the quoted or echoed data.
pub const HEADER_LEN: usize = 8;

pub const TYPE: usize = 0;
pub const CODE: usize = 1;
pub const CHECKSUM: Range<usize> = 2..4;
/// In an echo request and its reply.
pub const IDENTIFIER: Range<usize> = 4..6;
/// In an echo request and its reply.
pub const SEQUENCE: Range<usize> = 6..8;

/// Types, codes and fields of ICMP.
pub mod v4 {
    use std::ops::Range;

    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    pub const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Codes of [`UNREACHABLE`].
    pub const PROTOCOL_UNREACHABLE: u8 = 2;
    pub const PORT_UNREACHABLE: u8 = 3;
    pub const FRAGMENTATION_NEEDED: u8 = 4;

    /// In [`FRAGMENTATION_NEEDED`] (RFC 1191 section 4).
    pub const MTU: Range<usize> = 6..8;

    /// Whether a message type is an echo request or reply.
    pub const fn is_echo(kind: u8) -> bool {
        matches!(kind, ECHO | ECHO_REPLY)
    }

    /// Whether a message type is an error (RFC 1122 section 3.2.2).
    pub const fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// Types, codes and fields of ICMPv6.
pub mod v6 {
    use std::ops::Range;

    pub const UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;

    /// A code of [`UNREACHABLE`].
    pub const PORT_UNREACHABLE: u8 = 4;

    /// In [`PACKET_TOO_BIG`].
    pub const MTU: Range<usize> = 4..8;

    /// Whether a message type is an echo request or reply.
    pub const fn is_echo(kind: u8) -> bool {
        matches!(kind, ECHO | ECHO_REPLY)
    }

    /// Whether a message type is an error (RFC 4443 section 2.1).
    pub const fn is_error(kind: u8) -> bool {
        kind < 128
    }
}
