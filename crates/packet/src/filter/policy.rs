//! The filter's configuration, before it is compiled.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

/// The accepted packets. Everything else is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The allowed destinations: the addresses of this host and the networks that it routes.
    pub local: Vec<AddressRange>,
    /// A packet is accepted if one rule matches it.
    pub rules: Vec<Rule>,
    /// IP protocols that are accepted without a rule, to local addresses.
    pub open_protocols: Vec<u8>,
    /// Ignores all rules. Only replies to flows that this host opened are accepted.
    pub shields_up: bool,
}

/// Matches packets from one of its sources to one of its destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// IP protocols. A rule without protocols matches only ICMP, for which this field is ignored.
    pub protocols: Vec<u8>,
    /// Source addresses.
    pub sources: Vec<AddressRange>,
    /// Destination addresses and ports.
    pub destinations: Vec<Destination>,
}

/// Addresses with ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub addresses: AddressRange,
    /// The ports, for protocols that have ports.
    pub ports: RangeInclusive<u16>,
}

/// All addresses of one family between two bounds, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Every IPv4 address.
    pub const V4: Self =
        Self { first: IpAddr::V4(Ipv4Addr::UNSPECIFIED), last: IpAddr::V4(Ipv4Addr::BROADCAST) };
    /// Every IPv6 address.
    pub const V6: Self = Self {
        first: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        last: IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };

    /// Creates the range from `first` to `last`, inclusive. Returns `None` if the families differ
    /// or the order is wrong.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let ordered = first.is_ipv4() == last.is_ipv4() && first <= last;
        ordered.then_some(Self { first, last })
    }

    /// Returns the network of the first `len` bits of `address`. Returns `None` if `len` is too
    /// large.
    pub fn prefix(address: IpAddr, len: u8) -> Option<Self> {
        match address {
            IpAddr::V4(ip) => {
                let hosts = u32::MAX.checked_shr(len.into()).unwrap_or(0);
                let (first, last) = (ip.to_bits() & !hosts, ip.to_bits() | hosts);
                let [first, last] = [first, last].map(|bits| Ipv4Addr::from_bits(bits).into());
                (len <= 32).then_some(Self { first, last })
            }
            IpAddr::V6(ip) => {
                let hosts = u128::MAX.checked_shr(len.into()).unwrap_or(0);
                let (first, last) = (ip.to_bits() & !hosts, ip.to_bits() | hosts);
                let [first, last] = [first, last].map(|bits| Ipv6Addr::from_bits(bits).into());
                (len <= 128).then_some(Self { first, last })
            }
        }
    }

    /// The lowest address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub fn last(self) -> IpAddr {
        self.last
    }

    /// The bounds as numbers; `None` for the other family.
    pub(super) fn bits(self, v4: bool) -> Option<(u128, u128)> {
        (self.first.is_ipv4() == v4).then(|| (bits(self.first), bits(self.last)))
    }
}

impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        Self { first: address, last: address }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(first: &str, last: &str) -> Option<AddressRange> {
        AddressRange::new(ip(first), ip(last))
    }

    #[test]
    fn a_prefix_is_the_range_of_its_addresses() {
        let prefix = |text: &str, len| AddressRange::prefix(ip(text), len);
        assert_eq!(prefix("10.1.2.3", 8), range("10.0.0.0", "10.255.255.255"));
        assert_eq!(prefix("10.1.2.3", 32), Some(ip("10.1.2.3").into()));
        assert_eq!(prefix("10.1.2.3", 0), Some(AddressRange::V4));
        assert_eq!(prefix("10.1.2.3", 33), None);
        assert_eq!(prefix("fd00::7", 126), range("fd00::4", "fd00::7"));
        assert_eq!(prefix("fd00::7", 128), Some(ip("fd00::7").into()));
        assert_eq!(prefix("fd00::7", 0), Some(AddressRange::V6));
        assert_eq!(prefix("fd00::7", 129), None);
    }

    #[test]
    fn a_range_is_of_one_family_and_in_order() {
        assert_eq!(range("10.0.0.2", "10.0.0.1"), None);
        assert_eq!(range("10.0.0.1", "fd00::1"), None);
        assert_eq!(range("fd00::1", "10.0.0.1"), None);
        assert!(range("10.0.0.1", "10.0.0.1").is_some());
    }
}
