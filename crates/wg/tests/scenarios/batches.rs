//! Batches of initiations: each is handled as if it had arrived alone.

use packet::Endpoint;
use wg::DropReason;

use crate::support::*;

const PEERS: usize = 21;

/// A hub, its peers, and one undelivered initiation of each peer.
fn crowd(seed: u64) -> (World, Id, Vec<Vec<u8>>) {
    let mut world = World::new(seed);
    let hub = world.add_host();
    let peers: Vec<Id> = (0..PEERS).map(|_| world.add_host()).collect();
    for peer in peers {
        world.introduce(hub, peer);
        world.introduce(peer, hub);
    }
    world.gate(|_| false);
    let begun: Vec<Vec<u8>> = (hub + 1..=PEERS)
        .map(|peer| {
            world.send(peer, hub);
            world.sent(peer, What::Initiation)[0].bytes.clone()
        })
        .collect();
    world.open_gate();
    (world, hub, begun)
}

/// Passes these to the hub in one batch.
fn handle_batch(world: &mut World, hub: Id, datagrams: &[(Vec<u8>, Id)]) {
    let from: Vec<Endpoint> =
        datagrams.iter().map(|(_, from)| Endpoint::new(world.hosts[*from].address)).collect();
    let datagrams = datagrams.iter().map(|(bytes, _)| &bytes[..]).zip(from);
    world.act(hub, |host, now| host.control.handle_datagrams(datagrams, now));
}

#[test]
fn all_initiations_of_a_batch_get_a_session() {
    let (mut world, hub, begun) = crowd(1);
    let all: Vec<_> = begun.into_iter().zip(hub + 1..).collect();
    handle_batch(&mut world, hub, &all);
    assert_eq!(world.sent(hub, What::Response).len(), PEERS);
    world.run(millis(100));
    for peer in hub + 1..=PEERS {
        assert_eq!(world.hosts[peer].handshakes().0, 1, "{peer}");
    }
    assert_eq!(world.received(hub).len(), PEERS, "staged packets arrive");
}

#[test]
fn invalid_initiations_of_a_batch_are_counted_and_the_rest_answered() {
    let (mut world, hub, begun) = crowd(2);
    let name = world.key(hub);
    let stranger = world.add_host();
    world.introduce(stranger, hub);
    world.gate(|_| false);
    world.send(stranger, hub);
    let foreign = world.sent(stranger, What::Initiation)[0].bytes.clone();
    world.open_gate();

    let mut all = Vec::new();
    for (at, initiation) in begun.into_iter().enumerate() {
        let peer = hub + 1 + at;
        match at % 3 {
            0 => {
                let mut forged = initiation.clone();
                // Forges the ephemeral key, the static key, the timestamp or a MAC.
                let byte = [8, 40, 88, 120][at / 3 % 4];
                forged[byte] ^= 1;
                let forged = if byte == 120 { forged } else { restamped(&forged, &name) };
                all.push((forged, peer));
            }
            1 => all.push((initiation.clone(), peer)),
            _ => all.push((foreign.clone(), stranger)),
        }
        all.push((initiation, peer));
    }
    handle_batch(&mut world, hub, &all);
    let dropped = |reason| world.hosts[hub].dropped(reason);
    assert_eq!(dropped(DropReason::HandshakeInvalidMac), 1);
    assert_eq!(dropped(DropReason::HandshakeForged), 6);
    assert_eq!(dropped(DropReason::HandshakeReplayed), 7);
    assert_eq!(dropped(DropReason::HandshakeUnknownPeer), 7);
    assert_eq!(world.sent(hub, What::Response).len(), PEERS);
    world.run(millis(100));
    assert_eq!(world.received(hub).len(), PEERS);
}
