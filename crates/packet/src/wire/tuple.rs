//! Protocol, addresses and ports as one key.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{IpHeader, Version, get, get_u16, icmp, ipv4, ipv6, protocol};

/// Words of an IPv6 address.
const WORDS_V6: usize = 2;
/// In the last word, of a key of IPv6. It keeps IPv4 apart from an IPv6 address of zeros
/// before four bytes.
const V6: u64 = 1;

/// What names a flow in one direction: five words, compared and hashed as they are.
///
/// For ICMP the ports are: at the source the identifier of an echo or its reply, else 0; at
/// the destination the type in the high byte and the code in the low one. Other protocols
/// without ports have 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiveTuple {
    source: [u64; WORDS_V6],
    destination: [u64; WORDS_V6],
    /// From the low byte on: version, protocol, destination port, source port.
    rest: u64,
}

impl FiveTuple {
    /// Reads the key of `packet`, whose IP headers are `header`. `None` where the packet does
    /// not say all of it: a later fragment, a transport header that is cut off or not found.
    #[inline]
    pub fn parse(header: &IpHeader, packet: &[u8]) -> Option<Self> {
        let ports = match (header.version, header.protocol) {
            (_, number) if protocol::has_ports(number) => {
                let [a, b, c, d] = header.ports(packet)?;
                [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
            }
            _ if !header.has_transport() => return None,
            (Version::V4, protocol::ICMP) => {
                icmp_ports(header.transport(packet), icmp::v4::is_echo)?
            }
            (Version::V6, protocol::ICMPV6) => {
                icmp_ports(header.transport(packet), icmp::v6::is_echo)?
            }
            _ => [0, 0],
        };
        let rest =
            u64::from(ports[0]) << 32 | u64::from(ports[1]) << 16 | u64::from(header.protocol) << 8;
        Some(match header.version {
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
        })
    }

    pub fn protocol(&self) -> u8 {
        (self.rest >> 8) as u8
    }

    pub fn source(&self) -> IpAddr {
        self.address(self.source)
    }

    pub fn destination(&self) -> IpAddr {
        self.address(self.destination)
    }

    pub fn source_port(&self) -> u16 {
        (self.rest >> 32) as u16
    }

    pub fn destination_port(&self) -> u16 {
        (self.rest >> 16) as u16
    }

    fn address(&self, [high, low]: [u64; WORDS_V6]) -> IpAddr {
        if self.rest & V6 == 0 {
            return Ipv4Addr::from(low as u32).into();
        }
        Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()
    }
}

impl Hash for FiveTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in [self.source, self.destination].as_flattened() {
            state.write_u64(*word);
        }
        state.write_u64(self.rest);
    }
}

fn words(address: [u8; 16]) -> [u64; WORDS_V6] {
    let address = u128::from_be_bytes(address);
    [(address >> 64) as u64, address as u64]
}

fn icmp_ports(message: &[u8], is_echo: fn(u8) -> bool) -> Option<[u16; 2]> {
    let header: &[u8; icmp::HEADER_LEN] = message.first_chunk()?;
    let [kind, code] = [header[icmp::TYPE], header[icmp::CODE]];
    let identifier = if is_echo(kind) { get_u16(header, icmp::IDENTIFIER) } else { 0 };
    Some([identifier, u16::from_be_bytes([kind, code])])
}
