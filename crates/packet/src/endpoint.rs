//! Where a peer is reached, and from where it is answered.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The outer place of a peer, and our own address it was last reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where the peer is.
    pub remote: Remote,
    /// The address and interface the peer reached us at: answers leave from
    /// there (a sticky source). `None` leaves the choice to the routing table.
    pub local: Option<Local>,
}

/// Where datagrams for a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// To its UDP address. IPv4 is always `V4`, never an IPv4-mapped `V6`.
    Direct(SocketAddr),
    /// To a relay, which passes them on.
    Relayed(RelayId),
}

/// A peer behind a relay: a number in the table of who speaks to relays. The relay and the
/// peer's key would make every endpoint longer, and these are copied with every datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayId(u32);

/// One of our own addresses, on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The address a datagram was sent to.
    pub addr: IpAddr,
    /// The index of the interface it came in by.
    pub interface: u32,
}

impl Endpoint {
    /// An endpoint whose source the routing table chooses.
    ///
    /// IPv4-mapped addresses become IPv4, and the flow label is cleared, so that
    /// one place has one representation.
    pub fn new(remote: SocketAddr) -> Self {
        let remote = match remote {
            SocketAddr::V4(_) => remote,
            SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
                Some(v4) => SocketAddr::from((v4, v6.port())),
                None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id())),
            },
        };
        Self { remote: Remote::Direct(remote), local: None }
    }

    /// The endpoint of a peer behind a relay.
    pub fn relayed(id: RelayId) -> Self {
        Self { remote: Remote::Relayed(id), local: None }
    }
}

/// The addresses that one host may use: the /64 of an IPv6 address (RFC 4291, section 2.5.4), with
/// the lower bits 0, or an IPv4 address alone.
pub fn site(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

impl Remote {
    /// The UDP address, where there is one.
    pub fn direct(self) -> Option<SocketAddr> {
        match self {
            Self::Direct(address) => Some(address),
            Self::Relayed(_) => None,
        }
    }

    /// Whether it is behind a relay.
    pub fn is_relayed(self) -> bool {
        matches!(self, Self::Relayed(_))
    }
}

impl From<SocketAddr> for Remote {
    fn from(address: SocketAddr) -> Self {
        Self::Direct(address)
    }
}

impl RelayId {
    /// The entry number `index` of the table.
    pub fn new(index: u32) -> Self {
        Self(index)
    }

    /// Where it stands in the table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_mapped_address_and_its_ipv4_form_are_one_endpoint() {
        let mapped = Endpoint::new("[::ffff:192.0.2.1]:51820".parse().unwrap());
        let plain = Endpoint::new("192.0.2.1:51820".parse().unwrap());
        assert_eq!(mapped, plain);
    }

    #[test]
    fn the_addresses_of_a_network_of_ipv6_are_one_site() {
        for (address, expected) in [
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
            ("2001:db8:0:1::", "2001:db8:0:1::"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(site(address.parse().unwrap()), expected.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn an_endpoint_is_no_larger_than_without_relays() {
        assert_eq!(size_of::<Remote>(), size_of::<SocketAddr>());
        assert_eq!(size_of::<Endpoint>(), size_of::<SocketAddr>() + size_of::<Option<Local>>());
    }
}
