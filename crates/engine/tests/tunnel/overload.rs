//! More datagrams arrive than can be opened.

use std::time::Duration;

use sim::{Link, Network};
use wg::DropReason;

use crate::support::{Host, packet, run};

/// A hub, and two peers that have completed a handshake with it.
fn star() -> (Network, Host, [Host; 2]) {
    let network = Network::new(7, Link::CLEAN);
    let mut hub = Host::new(&network, 1, |net| net);
    let mut peers = [2, 3].map(|number| Host::new(&network, number, |net| net));
    for (peer, address) in peers.iter_mut().zip(["10.0.0.2", "10.0.0.3"]) {
        hub.introduce(peer.identity(), &format!("{address}/32"));
        peer.introduce(hub.identity(), "10.0.0.1/32");
        peer.port.push(packet(address, "10.0.0.1", 0, 0, 64));
        run(&network, &mut [&mut hub, peer], Duration::from_secs(1));
    }
    assert_eq!(hub.port.take().len(), 2);
    (network, hub, peers)
}

/// Sends ten bursts of both peers, each longer than the hub's socket can hold. Returns the number
/// of packets that arrive of each peer.
fn burst(senders: [usize; 2]) -> ([usize; 2], Host) {
    let (network, mut hub, mut peers) = star();
    network.set_room(60);
    let mut arrived = Vec::new();
    for number in 0..10 {
        for ((peer, from), count) in peers.iter_mut().zip(["10.0.0.2", "10.0.0.3"]).zip(senders) {
            let bulk = if count > 10 { 40_000 } else { 200 };
            (0..count).for_each(|_| peer.port.push(packet(from, "10.0.0.1", 0, number, bulk)));
            (0..40).for_each(|_| peer.step());
        }
        network.pass(Duration::from_millis(1));
        hub.step();
        arrived.extend(hub.port.take());
    }
    let of = |last: u8| arrived.iter().filter(|packet| packet[15] == last).count();
    ([of(2), of(3)], hub)
}

#[test]
fn on_overflow_a_flooding_peer_gets_its_share_and_others_lose_nothing() {
    let ([light, flood], hub) = burst([5, 80]);
    assert_eq!(light, 50);
    // All of the first burst that fits the socket, then a share of 512 KiB.
    assert!((55 + 9 * 10..=55 + 9 * 14).contains(&flood), "{flood}");
    assert!(hub.drops(DropReason::InCrowded) > 300);
}

#[test]
fn under_contention_every_peer_gets_at_least_one_datagram() {
    // Each peer alone could fill the budget, and both get a part.
    let ([one, other], hub) = burst([25, 35]);
    assert!(one >= 25 + 9 && other >= 35 + 9, "{one} {other}");
    assert_eq!(hub.drops(DropReason::InCrowded), 0, "nothing is lost, so nothing is shed");
    let ([one, other], hub) = burst([30, 50]);
    assert!(one >= 30 + 9 * 5 && other >= 30 + 9 * 5, "{one} {other}");
    assert!(hub.drops(DropReason::InCrowded) > 100);
}

#[test]
fn a_single_peer_is_never_limited() {
    let ([_, flood], hub) = burst([0, 80]);
    assert_eq!(flood, 600);
    assert_eq!(hub.drops(DropReason::InCrowded), 0);
}
