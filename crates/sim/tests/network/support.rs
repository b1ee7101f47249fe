//! Hosts and their exchanges.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use sim::{Nat, Network, Realm, Socket};

/// Longer than the link's delay.
const LINK_TIME: Duration = Duration::from_millis(10);

/// The host behind a box.
pub(crate) const INNER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 51820);

/// The outer address of a box on the Internet.
pub(crate) fn outer(number: u8) -> IpAddr {
    [203, 0, 113, number].into()
}

/// Two addresses with two ports each; neighbours share the address.
pub(crate) fn remotes(network: &Network) -> [Socket; 4] {
    [(1, 3478), (1, 3479), (2, 3478), (2, 3479)]
        .map(|(number, port)| network.bind(Realm::INTERNET, ([198, 51, 100, number], port).into()))
}

/// The network behind all these boxes. The first one is on the Internet, at `address`.
pub(crate) fn nested(network: &Network, boxes: &[Nat], address: IpAddr) -> Realm {
    let addresses = std::iter::once(address).chain((2..).map(|number| [100, 64, number, 2].into()));
    boxes
        .iter()
        .zip(addresses)
        .fold(Realm::INTERNET, |realm, (nat, address)| network.add_nat(realm, *nat, &[address]))
}

/// Sends from a host to a remote. Returns the source that the remote sees.
pub(crate) fn exchange(network: &Network, host: &Socket, remote: &Socket) -> Option<SocketAddr> {
    host.send(remote.address, b"out");
    network.pass(LINK_TIME);
    remote.receive().map(|datagram| datagram.from)
}

/// Whether a datagram from a remote to `to` reaches the host.
pub(crate) fn reaches(network: &Network, remote: &Socket, to: SocketAddr, host: &Socket) -> bool {
    remote.send(to, b"in");
    network.pass(LINK_TIME);
    host.receive().is_some_and(|datagram| datagram.bytes == b"in")
}

/// Sends from a host and answers this many times, with three seconds in between.
pub(crate) fn converse(network: &Network, host: &Socket, remote: &Socket, answers: usize) {
    let mut scenario = exchange(network, host, remote).unwrap();
    for answer in 0..answers {
        if answer > 0 {
            network.pass(Duration::from_secs(3));
            scenario = exchange(network, host, remote).unwrap();
        }
        assert!(reaches(network, remote, scenario, host));
    }
}
