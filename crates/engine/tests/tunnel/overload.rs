//! More arrives than can be opened.

use std::time::Duration;

use sim::{Link, Network};
use wg::DropReason;

use crate::support::{Host, packet, run};

/// A hub, and two peers that have shaken hands with it.
fn star() -> (Network, Host, [Host; 2]) {
    let network = Network::new(7, Link::CLEAN);
    let mut hub = Host::new(&network, 1, |net| net);
    let mut peers = [2, 3].map(|number| Host::new(&network, number, |net| net));
    for (peer, address) in peers.iter_mut().zip(["10.0.0.2", "10.0.0.3"]) {
        hub.introduce(peer.who(), &format!("{address}/32"));
        peer.introduce(hub.who(), "10.0.0.1/32");
        peer.port.push(packet(address, "10.0.0.1", 0, 0, 64));
        run(&network, &mut [&mut hub, peer], Duration::from_secs(1));
    }
    assert_eq!(hub.port.take().len(), 2);
    (network, hub, peers)
}

/// Ten times a burst of both peers that is longer than the hub's socket holds;
/// how many of each arrive.
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
fn where_the_socket_overflows_a_peer_that_floods_has_its_share_and_another_all_it_sent() {
    let ([light, flood], hub) = burst([5, 80]);
    assert_eq!(light, 50);
    // All that fitted of the first burst, then a share of 512 KiB.
    assert!((55 + 9 * 10..=55 + 9 * 14).contains(&flood), "{flood}");
    assert!(hub.drops(DropReason::InCrowded) > 300);
}

#[test]
fn in_a_crowd_every_peer_has_at_least_a_datagram() {
    // Either could fill the share alone, and neither leaves the other without.
    let ([one, other], hub) = burst([25, 35]);
    assert!(one >= 25 + 9 && other >= 35 + 9, "{one} {other}");
    assert_eq!(hub.drops(DropReason::InCrowded), 0, "nothing is lost, so nothing is shed");
    let ([one, other], hub) = burst([30, 50]);
    assert!(one >= 30 + 9 * 5 && other >= 30 + 9 * 5, "{one} {other}");
    assert!(hub.drops(DropReason::InCrowded) > 100);
}

#[test]
fn one_peer_alone_is_never_cut_short() {
    let ([_, flood], hub) = burst([0, 80]);
    assert_eq!(flood, 600);
    assert_eq!(hub.drops(DropReason::InCrowded), 0);
}
