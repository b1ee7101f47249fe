//! Socket addresses as the kernel encodes them: `sockaddr_in` (ip(7)) and `sockaddr_in6` (ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv6, and IPv4 with IPv4-mapped addresses.
    Dual,
    /// Only IPv4.
    V4,
}

impl Family {
    /// Whether the socket can send to the family of this address.
    pub(super) fn reaches(self, remote: SocketAddr) -> bool {
        self == Self::Dual || remote.is_ipv4()
    }
}

/// Length of a `sockaddr_in` in bytes, including padding.
const V4_LEN: usize = 16;
/// Length of a `sockaddr_in6` in bytes.
const V6_LEN: usize = 28;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4))]
pub(super) struct Name {
    pub(super) bytes: [u8; V6_LEN],
}

impl Name {
    pub(super) const EMPTY: Self = Self { bytes: [0; V6_LEN] };

    /// Encodes an address for a socket of this family. Also returns its length in bytes. An IPv4
    /// socket does not accept IPv6 addresses: see [`Family::reaches`].
    pub(super) fn new(remote: SocketAddr, family: Family) -> (Self, usize) {
        let mut bytes = [0; V6_LEN];
        bytes[2..4].copy_from_slice(&remote.port().to_be_bytes());
        if let (Family::V4, IpAddr::V4(v4)) = (family, remote.ip()) {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.octets());
            return (Self { bytes }, V4_LEN);
        }
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        let address = match remote.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        bytes[8..24].copy_from_slice(&address.octets());
        if let SocketAddr::V6(v6) = remote {
            bytes[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
        (Self { bytes }, V6_LEN)
    }

    /// Decodes the address in the first `len` bytes, without its flow label.
    pub(super) fn parse(&self, len: usize) -> Option<SocketAddr> {
        let bytes = self.bytes.get(..len)?;
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        match i32::from(family) {
            libc::AF_INET => {
                let address: &[u8; 4] = bytes.get(4..)?.first_chunk()?;
                Some((Ipv4Addr::from(*address), port).into())
            }
            libc::AF_INET6 => {
                let address: &[u8; 16] = bytes.get(8..)?.first_chunk()?;
                let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
                let address = Ipv6Addr::from(*address);
                Some(SocketAddrV6::new(address, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_truncated_ones_are_rejected() {
        for (text, family) in [
            ("192.0.2.1:51820", Family::V4),
            ("[2001:db8::1]:443", Family::Dual),
            ("[fe80::1%7]:1", Family::Dual),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let (name, len) = Name::new(address, family);
            assert_eq!(name.parse(len), Some(address));
            assert_eq!(name.parse(len.min(V6_LEN) - 13), None);
        }
        let (name, len) = Name::new("192.0.2.1:7".parse().unwrap(), Family::Dual);
        assert_eq!(name.parse(len), "[::ffff:192.0.2.1]:7".parse().ok());
        assert_eq!(Name::EMPTY.parse(V6_LEN), None);
    }
}
