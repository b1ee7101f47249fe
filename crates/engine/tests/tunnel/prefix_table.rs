//! Peers behind a peer relay.

use std::{net::SocketAddr, time::Duration};

use engine::{Attachments, PREFIX_LEN, PrefixTable, PrefixedAddr};
use packet::Endpoint;
use sim::{Link, Network, Realm};

use crate::support::{Host, make_peers, packet, run};

const MILLISECOND: Duration = Duration::from_millis(1);
const PREFIX: [u8; PREFIX_LEN] = [0, 0, 0x7a, 0x12, 0, 0, 5, 0];

#[test]
fn a_peer_behind_a_peer_relay_exchanges_handshake_and_data_with_a_prefix() {
    let network = Network::new(1, Link::CLEAN);
    let node = network.bind(Realm::INTERNET, "192.0.2.77:7000".parse().unwrap());
    let host = |number| {
        let prefixes = PrefixTable::default();
        let attached = Attachments { prefixes: prefixes.clone(), ..Attachments::default() };
        (Host::with(&network, number, |net| net, attached), prefixes)
    };
    let ((mut a, at_a), (mut b, at_b)) = (host(1), host(2));
    make_peers(&a, &b);
    let addr = PrefixedAddr { at: node.address, prefix: PREFIX };
    a.set_endpoint("10.0.0.2", at_a.endpoint(addr).unwrap());
    b.set_endpoint("10.0.0.1", at_b.endpoint(addr).unwrap());
    for number in 0..100 {
        a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 500));
        b.port.push(packet("fd00::2", "fd00::1", 0, number, 500));
    }
    let (mut passed, addresses): (usize, [SocketAddr; 2]) = (0, [a.address, b.address]);
    for _ in 0..1000 {
        run(&network, &mut [&mut a, &mut b], MILLISECOND);
        while let Some(datagram) = node.receive() {
            assert_eq!(datagram.bytes[..PREFIX_LEN], PREFIX);
            let from = addresses.iter().position(|address| *address == datagram.from).unwrap();
            node.send(addresses[1 - from], &datagram.bytes);
            passed += 1;
        }
    }
    assert_eq!((a.port.take().len(), b.port.take().len()), (100, 100));
    assert!(passed >= 202, "{passed}");
    assert_eq!((a.all_drops(), b.all_drops()), (vec![], vec![]));

    // From another address, the same datagram is malformed.
    let stranger = network.bind(Realm::INTERNET, "192.0.2.78:7000".parse().unwrap());
    stranger.send(a.address, &[&PREFIX[..], &[4, 0, 0, 0], &[0; 40]].concat());
    run(&network, &mut [&mut a, &mut b], MILLISECOND * 50);
    assert_eq!(a.all_drops().len(), 1);
    at_a.remove(&addr);
    a.set_endpoint("10.0.0.2", Endpoint::new(b.address));
}
