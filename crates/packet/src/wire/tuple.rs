//! Protocol, addresses and ports as one key.

use super::{IpHeader, Version, get, ipv4, ipv6};

/// Words of an IPv6 address.
const WORDS_V6: usize = 2;
/// In the last word, of a key of IPv6. It keeps IPv4 apart from an IPv6 address of zeros
/// before four bytes.
const V6: u64 = 1;

/// What names a flow in one direction: five words, compared as they are. The ports are 0 where
/// [`IpHeader::ports`] gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiveTuple {
    source: [u64; WORDS_V6],
    destination: [u64; WORDS_V6],
    /// From the low byte on: version, protocol, two bytes of zeros, destination port, source
    /// port.
    rest: u64,
}

impl FiveTuple {
    /// Reads the key of `packet`, whose IP headers are `header`.
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

    /// The key of what is sent back.
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

    /// The bits of the source address; of an IPv4 address they are the low ones.
    pub fn source(&self) -> u128 {
        bits(self.source)
    }

    /// The bits of the destination address; of an IPv4 address they are the low ones.
    pub fn destination(&self) -> u128 {
        bits(self.destination)
    }

    pub fn source_port(&self) -> u16 {
        (self.rest >> 48) as u16
    }

    pub fn destination_port(&self) -> u16 {
        (self.rest >> 32) as u16
    }

    /// All of it, to be hashed.
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
