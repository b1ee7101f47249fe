//! Where a peer is reached, and from where it is answered.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The outer address of a peer, and our own address it was last reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The peer's UDP address. IPv4 is always `V4`, never an IPv4-mapped `V6`.
    pub remote: SocketAddr,
    /// The address and interface the peer reached us at: answers leave from
    /// there (a sticky source). `None` leaves the choice to the routing table.
    pub local: Option<Local>,
}

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
        Self { remote, local: None }
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
}
