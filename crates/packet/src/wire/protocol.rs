//! IP protocol numbers (IANA, "Assigned Internet Protocol Numbers").

pub const ICMP: u8 = 1;
pub const IGMP: u8 = 2;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
pub const UDP_LITE: u8 = 136;
pub const RESERVED: u8 = 255;

/// Whether a protocol's header begins with a source and a destination port.
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
}
