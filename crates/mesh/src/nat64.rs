//! NAT64: in IPv6-only networks, IPv4 addresses are embedded in IPv6 addresses (RFC 6052) after a
//! prefix that a DNS name reveals (RFC 7050).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::desired_host_checks;

/// The name that reveals the prefix by its addresses (RFC 7050 section 3).
pub const NAME: &str = "ipv4only.arpa";

/// The IPv4 addresses of [`NAME`] (RFC 7050 section 8.2).
const KNOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// The prefix lengths in bits (RFC 6052 section 2.2), the usual one first.
const LENGTHS: [usize; 6] = [96, 64, 56, 48, 40, 32];

/// The byte that is always zero.
const RESERVED: usize = 8;

/// The prefix of embedded IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; 16],
    /// In bits.
    length: usize,
}

impl Prefix {
    /// Returns the prefix from the addresses that a resolver returned for [`NAME`].
    pub fn discover(found: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        found.into_iter().find_map(|address| match address {
            IpAddr::V6(address) => Self::behind(address),
            IpAddr::V4(_) => None,
        })
    }

    fn behind(address: Ipv6Addr) -> Option<Self> {
        // All addresses with such a prefix would be on this machine or on a link.
        if desired_host_checks::is_reserved(&IpNet::from(IpAddr::V6(address))) {
            return None;
        }
        LENGTHS.into_iter().find_map(|length| {
            let mut bytes = address.octets();
            bytes[length / 8..].fill(0);
            let prefix = Self { bytes, length };
            KNOWN.into_iter().any(|known| prefix.embed(known) == address).then_some(prefix)
        })
    }

    /// Returns the IPv6 address for an IPv4 address.
    pub fn embed(&self, address: Ipv4Addr) -> Ipv6Addr {
        let mut bytes = self.bytes;
        for (at, byte) in self.places().zip(address.octets()) {
            bytes[at] = byte;
        }
        bytes.into()
    }

    /// Returns the embedded IPv4 address.
    pub fn extract(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let (bytes, mut found) = (address.octets(), [0; 4]);
        for (at, byte) in self.places().zip(&mut found) {
            *byte = bytes[at];
        }
        let found = found.into();
        (self.embed(found) == address).then_some(found)
    }

    /// Returns the positions of the bytes of an IPv4 address.
    fn places(&self) -> impl Iterator<Item = usize> {
        (self.length / 8..16).filter(|at| *at != RESERVED).take(4)
    }

    /// Translates the destination of a sent datagram.
    pub fn outward(&self, at: SocketAddr) -> SocketAddr {
        match at.ip() {
            IpAddr::V4(ip) => SocketAddr::new(self.embed(ip).into(), at.port()),
            IpAddr::V6(_) => at,
        }
    }

    /// Translates the source of a received datagram.
    pub fn inward(&self, at: SocketAddr) -> SocketAddr {
        match at.ip() {
            IpAddr::V6(ip) => {
                self.extract(ip).map_or(at, |ip| SocketAddr::new(ip.into(), at.port()))
            }
            IpAddr::V4(_) => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn discovered(address: &str) -> Option<Prefix> {
        Prefix::discover([address.parse().unwrap()])
    }

    /// The examples of RFC 6052 section 2.4, and its prefix.
    #[test]
    fn embedded_addresses_match_the_rfc() {
        for (known, embedded) in [
            ("2001:db8:c000:aa::", "2001:db8:c000:221::"),
            ("2001:db8:1c0:0:aa::", "2001:db8:1c0:2:21::"),
            ("2001:db8:122:c000:0:aa00::", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:3c0:0:aa::", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344:c0:0:aa00::", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::c000:aa", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::192.0.0.171", "64:ff9b::192.0.2.33"),
        ] {
            let prefix = discovered(known).unwrap();
            let embedded: Ipv6Addr = embedded.parse().unwrap();
            assert_eq!(prefix.embed(Ipv4Addr::new(192, 0, 2, 33)), embedded, "{known}");
        }
    }

    #[test]
    fn addresses_without_prefix_are_refused() {
        for address in [
            "192.0.0.170",
            "2001:db8::1",
            "64:ff9b::192.0.0.172",
            "::",
            "fe80::1",
            "::ffff:192.0.0.170",
            "fe80::192.0.0.170",
        ] {
            assert_eq!(discovered(address), None, "{address}");
        }
    }

    #[test]
    fn only_addresses_with_the_prefix_are_translated() {
        let prefix = discovered("64:ff9b::192.0.0.170").unwrap();
        for (address, of_v4) in [
            ("[64:ff9b::192.0.2.33]:7", "192.0.2.33:7"),
            ("[64:ff9b:0:1::192.0.2.33]:7", "[64:ff9b:0:1::192.0.2.33]:7"),
            ("192.0.2.33:7", "192.0.2.33:7"),
        ] {
            assert_eq!(prefix.inward(address.parse().unwrap()), of_v4.parse().unwrap());
        }
    }

    proptest! {
        #[test]
        fn translation_is_reversible(
            bytes in any::<[u8; 16]>(), length in 0..6_usize, v4 in any::<[u8; 4]>(), port: u16,
        ) {
            let mut prefix = Prefix { bytes, length: LENGTHS[length] };
            prefix.bytes[prefix.length / 8..].fill(0);
            prefix.bytes[RESERVED] = 0;
            let at = SocketAddr::new(IpAddr::from(v4), port);
            prop_assert_eq!(prefix.inward(prefix.outward(at)), at);
            prop_assume!(!desired_host_checks::is_reserved(&IpNet::from(IpAddr::V6(prefix.embed(KNOWN[0])))));
            // A shorter prefix may match if zeros follow, but it gives the same addresses.
            let found = Prefix::behind(prefix.embed(KNOWN[0])).unwrap();
            prop_assert_eq!(found.embed(KNOWN[1]), prefix.embed(KNOWN[1]));
        }
    }
}
