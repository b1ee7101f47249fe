//! Addresses of a peer: the remote endpoint and the local source.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The outer address of a peer, and the local address that its last datagram was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the peer.
    pub remote: Remote,
    /// The local address and interface at which the last datagram arrived. Answers are sent from
    /// there (a sticky source). If `None`, the routing table chooses the source.
    pub local: Option<Local>,
}

/// Destination of datagrams for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// A UDP address. IPv4 is always `V4`, never an IPv4-mapped `V6`.
    Direct(SocketAddr),
    /// A peer behind a relay.
    Relayed(RelayId),
}

/// A peer behind a relay: an index into the table of the component that forwards to relays. An
/// index keeps endpoints small; they are copied with every datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayId(u32);

/// A local address on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The destination address of the received datagram.
    pub addr: IpAddr,
    /// Index of the interface on which it arrived.
    pub interface: u32,
}

impl Endpoint {
    /// Creates an endpoint without a fixed source.
    ///
    /// IPv4-mapped addresses become IPv4 and the flow label is cleared, so that each address has
    /// one representation.
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

/// The prefix that one host is assumed to own: the /64 of an IPv6 address (RFC 4291, section 2.5.4)
/// with the lower bits 0, or a single IPv4 address.
pub fn host_prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Remote {
    /// The UDP address; `None` for a relayed peer.
    pub fn direct(self) -> Option<SocketAddr> {
        match self {
            Self::Direct(address) => Some(address),
            Self::Relayed(_) => None,
        }
    }

    /// Whether the peer is behind a relay.
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
    /// The entry of the table at `index`.
    pub fn new(index: u32) -> Self {
        Self(index)
    }

    /// The position in the table.
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
    fn host_prefix_is_the_64_of_ipv6_and_the_address_of_ipv4() {
        for (address, expected) in [
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
            ("2001:db8:0:1::", "2001:db8:0:1::"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(host_prefix(address.parse().unwrap()), expected.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn relay_ids_do_not_enlarge_endpoints() {
        assert_eq!(size_of::<Remote>(), size_of::<SocketAddr>());
        assert_eq!(size_of::<Endpoint>(), size_of::<SocketAddr>() + size_of::<Option<Local>>());
    }
}
