//! The parsed IP headers of a packet.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use super::{get, get_u16, ipv4, ipv6, protocol};
use crate::{Ecn, flow};

/// The most extension headers that are skipped. Senders never need more, and each costs only
/// eight bytes to send. Without a bound, one packet would cost thousands of reads.
const MAX_EXTENSIONS: usize = 8;

/// The parsed IP headers of a packet. Methods with a `packet` argument take the packet that was
/// parsed, or only its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Length of the whole packet according to its header, in bytes.
    pub total_len: usize,
    /// Offset of the header of `protocol`, in bytes. It may be after the end of a truncated packet.
    pub transport: u16,
    pub version: Version,
    /// The protocol after options and extension headers. It is the number of an extension header if
    /// that one is truncated or if there are too many.
    pub protocol: u8,
    pub fragment: Fragment,
    /// The ECN bits.
    pub ecn: Ecn,
    /// Whether the header of `protocol` directly follows an IP header without options and
    /// extensions, and the packet is not a fragment. For IPv4, the reserved flag must be clear,
    /// too.
    pub plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

/// Whether a packet is a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Not a fragment.
    Whole,
    /// The first fragment, with the transport header.
    First,
    /// A later fragment. It lacks the transport header, so its ports are unknown.
    Later,
}

/// Reason for which bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Shorter than the header of its version.
    Truncated,
    /// Neither version 4 nor 6.
    Version,
    /// The length field is shorter than the header, or longer than the bytes.
    Length,
}

impl IpHeader {
    /// Reads the headers of the packet at the beginning of `bytes`. Bytes after the packet are
    /// allowed, because tunnels pad packets.
    ///
    /// # Errors
    /// The bytes are not an IP packet.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let header = Self::parse_truncated(bytes)?;
        if !(ipv4::HEADER_LEN..=bytes.len()).contains(&header.total_len) {
            return Err(ParseError::Length);
        }
        Ok(header)
    }

    /// Reads the headers of a packet that may be truncated, as in an ICMP error. The length field
    /// is not checked.
    ///
    /// # Errors
    /// The bytes are not the beginning of an IP packet.
    #[inline(always)]
    pub fn parse_truncated(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|first| first >> 4) {
            None => Err(ParseError::Truncated),
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            Some(_) => Err(ParseError::Version),
        }
    }

    #[inline(always)]
    fn parse_v4(bytes: &[u8]) -> Result<Self, ParseError> {
        let header: &[u8; ipv4::HEADER_LEN] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let fragment = ipv4::fragment(header);
        Ok(Self {
            total_len: get_u16(header, ipv4::TOTAL_LEN).into(),
            transport: ipv4::header_len(header) as u16,
            version: Version::V4,
            protocol: header[ipv4::PROTOCOL],
            fragment: match fragment & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) {
                0 => Fragment::Whole,
                ipv4::MORE_FRAGMENTS => Fragment::First,
                _ => Fragment::Later,
            },
            ecn: Ecn::from_bits(header[ipv4::TOS]),
            plain: header[ipv4::VERSION_IHL] == ipv4::PLAIN && fragment & !ipv4::DONT_FRAGMENT == 0,
        })
    }

    #[inline(always)]
    fn parse_v6(bytes: &[u8]) -> Result<Self, ParseError> {
        let header: &[u8; ipv6::HEADER_LEN] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let total_len = ipv6::HEADER_LEN + usize::from(get_u16(header, ipv6::PAYLOAD_LEN));
        let next = header[ipv6::NEXT_HEADER];
        let plain = !is_extension(next);
        let start = if plain {
            TransportStart::plain(next)
        } else {
            TransportStart::find(bytes, total_len, next)
        };
        Ok(Self {
            total_len,
            transport: start.transport,
            version: Version::V6,
            protocol: start.protocol,
            fragment: start.fragment,
            ecn: Ecn::from_bits(ipv6::traffic_class(header)),
            plain,
        })
    }

    pub fn source(&self, packet: &[u8]) -> IpAddr {
        match self.version {
            Version::V4 => Ipv4Addr::from(get(packet, ipv4::SOURCE)).into(),
            Version::V6 => Ipv6Addr::from(get(packet, ipv6::SOURCE)).into(),
        }
    }

    pub fn destination(&self, packet: &[u8]) -> IpAddr {
        match self.version {
            Version::V4 => Ipv4Addr::from(get(packet, ipv4::DESTINATION)).into(),
            Version::V6 => Ipv6Addr::from(get(packet, ipv6::DESTINATION)).into(),
        }
    }

    /// Position of source and destination address, back to back.
    pub fn addresses(&self) -> Range<usize> {
        match self.version {
            Version::V4 => ipv4::ADDRESSES,
            Version::V6 => ipv6::ADDRESSES,
        }
    }

    /// The bytes of the packet after the IP headers. In a later fragment these are data without a
    /// header.
    pub fn transport<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let end = packet.len().min(self.total_len);
        packet.get(usize::from(self.transport)..end).unwrap_or_default()
    }

    /// Whether [`IpHeader::transport`] begins with the header of `protocol`.
    pub fn has_transport(&self) -> bool {
        let reached = match self.version {
            Version::V4 => usize::from(self.transport) >= ipv4::HEADER_LEN,
            Version::V6 => !is_extension(self.protocol),
        };
        reached && self.fragment != Fragment::Later
    }

    /// Source and destination port, back to back, if the packet contains them.
    #[inline(always)]
    pub fn ports(&self, packet: &[u8]) -> Option<[u8; 4]> {
        let at = usize::from(self.transport);
        // A protocol with ports is not an extension header, so the search has reached the transport
        // header.
        let say = protocol::has_ports(self.protocol)
            && self.fragment != Fragment::Later
            && (ipv4::HEADER_LEN..self.total_len.saturating_sub(3)).contains(&at);
        packet.get(at..)?.first_chunk().copied().filter(|_| say)
    }

    /// A hash of addresses, protocol and ports. For fragments, which may lack ports, it covers
    /// addresses and protocol, like the kernel's flow dissector.
    #[inline]
    pub fn flow_hash(&self, packet: &[u8]) -> u64 {
        let addresses = &packet[self.addresses()];
        if self.fragment == Fragment::Whole {
            let ports = self.ports(packet).unwrap_or_default();
            return flow::hash(self.protocol, addresses, &ports);
        }
        // A later IPv6 fragment does not contain the protocol after further extension headers.
        let protocol = match self.version {
            Version::V4 => self.protocol,
            Version::V6 => ipv6::extension::FRAGMENT,
        };
        flow::hash(protocol, addresses, &[])
    }
}

/// Result of skipping the extension headers of an IPv6 packet. It fits a register.
#[derive(Clone, Copy)]
struct TransportStart {
    transport: u16,
    protocol: u8,
    fragment: Fragment,
}

impl TransportStart {
    fn plain(protocol: u8) -> Self {
        Self { transport: ipv6::HEADER_LEN as u16, protocol, fragment: Fragment::Whole }
    }

    /// Skips the extension headers.
    #[cold]
    fn find(bytes: &[u8], total_len: usize, next: u8) -> Self {
        use ipv6::extension::{FRAGMENT, FRAGMENT_LEN, LEN, NEXT_HEADER, OFFSET, OFFSET_MASK};
        let bytes = &bytes[..bytes.len().min(total_len)];
        let mut found = Self::plain(next);
        for _ in 0..MAX_EXTENSIONS {
            if !is_extension(found.protocol) || found.fragment == Fragment::Later {
                break;
            }
            let rest = bytes.get(usize::from(found.transport)..).unwrap_or_default();
            // The shortest extension header has eight bytes.
            let Some(header) = rest.first_chunk::<8>() else { break };
            let len = if found.protocol == FRAGMENT {
                let is_first = get_u16(header, OFFSET) & OFFSET_MASK == 0;
                found.fragment = if is_first { Fragment::First } else { Fragment::Later };
                FRAGMENT_LEN
            } else {
                8 * (1 + usize::from(header[LEN]))
            };
            let Ok(transport) = u16::try_from(usize::from(found.transport) + len) else { break };
            (found.protocol, found.transport) = (header[NEXT_HEADER], transport);
        }
        found
    }
}

fn is_extension(next_header: u8) -> bool {
    use ipv6::extension::{DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

#[cfg(test)]
mod tests;
