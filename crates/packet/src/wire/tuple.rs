//! Protocol, addresses and ports as one hashable key.

use super::{IpHeader, Version, get, ipv4, ipv6};

/// Words of an IPv6 address.
const WORDS_V6: usize = 2;
/// Set in the last word of an IPv6 key. It distinguishes an IPv4 address from an IPv6 address with
/// the same low four bytes and zeros elsewhere.
const V6: u64 = 1;

/// Identifies a flow in one direction: five words that are compared without decoding. Ports are 0
/// if [`IpHeader::ports`] returns `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiveTuple {
    source: [u64; WORDS_V6],
    destination: [u64; WORDS_V6],
    /// From the lowest byte: version, protocol, two zero bytes, destination port, source port.
    rest: u64,
}

impl FiveTuple {
    /// Reads the key of a packet with parsed IP headers.
    #[inline(always)]
    pub fn parse(header: &IpHeader, packet: &[u8]) -> Self {
        let ports = u32::from_be_bytes(header.ports(packet).unwrap_or_default());
        let rest = u64::from(ports) << 32 | u64::from(header.protocol) << 8;
        match header.version {
            Version::V4 => Self {
                source: [0, u32::from_be_bytes(get(packet, ipv4::SOURCE)).into()],
                destination: [0, u32::from_be_bytes(get(packet, ipv4::DESTINATION)).into()],
                rest,
            },
            Version::V6 => Self {
                source: words(get(packet, ipv6::SOURCE)),
                destination: words(get(packet, ipv6::DESTINATION)),
                rest: rest | V6,
            },
        }
    }

    /// The key of the replies.
    pub fn reversed(self) -> Self {
        let ports = ((self.rest >> 32) as u32).rotate_left(16);
        Self {
            source: self.destination,
            destination: self.source,
            rest: u64::from(ports) << 32 | u64::from(self.rest as u32),
        }
    }

    pub fn version(&self) -> Version {
        if self.rest & V6 == 0 { Version::V4 } else { Version::V6 }
    }

    pub fn protocol(&self) -> u8 {
        (self.rest >> 8) as u8
    }

    /// The source address as a number. An IPv4 address is in the low 32 bits.
    pub fn source(&self) -> u128 {
        bits(self.source)
    }

    /// The destination address as a number. An IPv4 address is in the low 32 bits.
    pub fn destination(&self) -> u128 {
        bits(self.destination)
    }

    pub fn source_port(&self) -> u16 {
        (self.rest >> 48) as u16
    }

    pub fn destination_port(&self) -> u16 {
        (self.rest >> 32) as u16
    }

    /// All words, for hashing.
    pub fn words(&self) -> [u64; 5] {
        let ([a, b], [c, d]) = (self.source, self.destination);
        [a, b, c, d, self.rest]
    }
}

fn words(address: [u8; 16]) -> [u64; WORDS_V6] {
    let address = u128::from_be_bytes(address);
    [(address >> 64) as u64, address as u64]
}

fn bits([high, low]: [u64; WORDS_V6]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}
