//! Effects of configuration changes on a running device.

use wg::{
    DropReason, PresharedKey, PrivateKey,
    config::{AllowedIpChange, DeviceChange, PeerChange},
};

use crate::support::*;

fn remove(world: &World, peer: Id) -> PeerChange {
    PeerChange { remove: true, ..PeerChange::new(world.key(peer)) }
}

/// Three hosts. The first one has the others as peers.
fn star(seed: u64) -> World {
    let mut world = World::pair(seed);
    let c = world.add_host();
    world.introduce(A, c);
    world.introduce(c, A);
    world
}

#[test]
fn new_private_key_ends_every_session_and_handshake() {
    let mut world = World::connected(1);
    world.assert_flows(A, B);
    world.gate(|sent| sent.what != What::Data);
    world.send(B, A);
    let late = world.sent(B, What::Data).last().unwrap().bytes.clone();
    world.open_gate();

    let new = PrivateKey::from_bytes(&[42; 32]);
    world.apply(A, DeviceChange { private_key: Some(Some(new.clone())), ..Default::default() });
    let old_key = world.key(A);
    world.hosts[A].key = new;
    world.inject(&late, world.hosts[B].address, A);
    world.run(millis(10));
    assert_eq!(world.hosts[A].dropped(DropReason::InUnknownIndex), 1);
    let number = world.send(A, B);
    world.run(secs(8));
    assert!(!world.received(B).contains(&number));
    assert!(world.hosts[B].dropped(DropReason::HandshakeUnknownPeer) >= 1);

    world.change_peer(B, PeerChange { remove: true, ..PeerChange::new(old_key) });
    world.introduce(B, A);
    world.run(secs(8));
    assert!(world.received(B).contains(&number), "the new key is known now");
    world.assert_flows(A, B);
}

#[test]
fn setting_the_same_private_key_changes_nothing() {
    let mut world = World::connected(2);
    let key = world.hosts[A].key.clone();
    world.apply(A, DeviceChange { private_key: Some(Some(key)), ..Default::default() });
    world.assert_flows(A, B);
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
}

#[test]
fn response_to_an_initiation_of_the_old_key_is_refused() {
    let mut world = World::pair(3);
    world.send(A, B);
    world.run(millis(15));
    let new = PrivateKey::from_bytes(&[42; 32]);
    world.apply(A, DeviceChange { private_key: Some(Some(new)), ..Default::default() });
    world.run(millis(100));
    assert!(world.sent(A, What::Data).is_empty());
    let refused = world.hosts[A].dropped(DropReason::HandshakeInvalidMac)
        + world.hosts[A].dropped(DropReason::HandshakeUnexpected);
    assert_eq!(refused, 1);
}

#[test]
fn own_public_key_is_never_a_peer_in_either_order() {
    let mut world = World::pair(4);
    let own = world.key(A);
    world.change_peer(A, PeerChange::new(own));
    assert!(world.hosts[A].control.peers().all(|peer| peer.public_key != own));

    let new = world.hosts[B].key.clone();
    world.apply(A, DeviceChange { private_key: Some(Some(new)), ..Default::default() });
    assert_eq!(world.hosts[A].control.peers().len(), 0, "B's key is ours now");
    assert!(world.hosts[A].device.route(inner(B).into()).is_none());
}

#[test]
fn removed_peer_neither_sends_nor_receives() {
    let mut world = World::connected(5);
    world.assert_flows(A, B);
    let gone = remove(&world, B);
    world.change_peer(A, gone);
    let received = world.received(A).len();
    let sent = world.sent(A, What::Data).len();
    world.send(B, A);
    world.send(A, B);
    world.run(secs(30));
    assert_eq!(world.received(A).len(), received);
    assert_eq!(world.sent(A, What::Data).len(), sent);
    assert_eq!(world.hosts[A].dropped(DropReason::InUnknownIndex), 1);
    assert_eq!(world.hosts[A].dropped(DropReason::OutNoPeer), 1);
    assert!(world.hosts[A].dropped(DropReason::HandshakeUnknownPeer) >= 1);
    assert_eq!(world.hosts[A].control.peers().len(), 0);
    assert_eq!(world.hosts[A].control.poll_timeout(), None);
}

#[test]
fn peer_removed_and_added_again_starts_from_scratch() {
    for (host, other) in [(A, B), (B, A)] {
        let mut world = World::connected(6);
        world.assert_flows(A, B);
        let gone = remove(&world, other);
        world.change_peer(host, gone);
        world.introduce(host, other);
        let state = world.hosts[host].state(&world.key(other));
        assert_eq!((state.rx_bytes, state.tx_bytes, state.last_handshake), (0, 0, None));
        world.assert_flows(host, other);
        world.run(secs(300));
        world.assert_flows(host, other);
    }
}

#[test]
fn peer_removed_and_added_again_during_a_handshake_starts_a_new_one() {
    let mut world = World::pair(7);
    world.send(A, B);
    world.run(millis(15));
    let gone = remove(&world, B);
    world.change_peer(A, gone);
    world.introduce(A, B);
    world.run(millis(10));
    assert_eq!(world.hosts[A].dropped(DropReason::HandshakeUnexpected), 1);
    world.run(millis(100));
    world.assert_flows(A, B);
}

#[test]
fn staged_packets_of_a_removed_peer_are_dropped_and_counted() {
    let mut world = World::pair(8);
    world.gate(|_| false);
    world.send_many(A, B, 7);
    let gone = remove(&world, B);
    world.change_peer(A, gone);
    assert_eq!(world.hosts[A].dropped(DropReason::OutHandshakeFailed), 7);
    world.open_gate();
    world.introduce(A, B);
    world.run(secs(10));
    assert!(world.received(B).is_empty());
}

#[test]
fn replacing_all_peers_leaves_only_those_in_the_change() {
    let mut world = star(9);
    let change = DeviceChange {
        replace_peers: true,
        peers: vec![world.peer_change(C)],
        ..Default::default()
    };
    world.apply(A, change);
    let names: Vec<_> = world.hosts[A].control.peers().map(|peer| peer.public_key).collect();
    assert_eq!(names, [world.key(C)]);
    assert!(world.hosts[A].device.route(inner(B).into()).is_none());
    assert!(world.hosts[A].device.route(inner(C).into()).is_some());
}

#[test]
fn update_only_does_not_add_an_unknown_peer() {
    let mut world = World::new(10);
    world.add_host();
    let change = PeerChange { update_only: true, ..PeerChange::new([9; 32].into()) };
    world.change_peer(A, change);
    assert_eq!(world.hosts[A].control.peers().len(), 0);
}

#[test]
fn allowed_ip_moved_to_another_peer_changes_both_directions() {
    let mut world = star(11);
    for peer in [B, C] {
        world.send(peer, A);
        world.send(A, peer);
    }
    world.run(secs(1));
    let to_b = world.received(B).len();
    // C takes over B's address.
    let net = allowed("10.0.0.2/32");
    let change = PeerChange { allowed_ips: vec![net], ..PeerChange::new(world.key(C)) };
    world.change_peer(A, change);
    world.send(A, B);
    world.send(B, A);
    world.run(secs(1));
    assert_eq!(world.received(B).len(), to_b, "its packets go to C");
    assert_eq!(world.hosts[A].dropped(DropReason::InSpoofed), 1, "and it may not send from there");
    let nets = |world: &World, peer| world.hosts[A].state(&world.key(peer)).allowed_ips;
    assert!(nets(&world, B).is_empty());
    assert_eq!(nets(&world, C).len(), 2);

    let packet = inner_packet(inner(B).into(), inner(A).into(), 777);
    let route = inner_packet(inner(C).into(), inner(A).into(), 778);
    for packet in [packet, route] {
        world.act(C, |host, now| host.send(&[packet], now));
    }
    world.run(secs(1));
    assert!(world.received(A).ends_with(&[777, 778]));
}

#[test]
fn allowed_ip_is_removed_only_from_its_owner() {
    let mut world = star(12);
    let net = AllowedIpChange { remove: true, ..allowed("10.0.0.2/32") };
    let change = PeerChange { allowed_ips: vec![net], ..PeerChange::new(world.key(C)) };
    world.change_peer(A, change);
    assert!(world.hosts[A].device.route(inner(B).into()).is_some(), "C never had it");
    let change = PeerChange { allowed_ips: vec![net], ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    assert!(world.hosts[A].device.route(inner(B).into()).is_none());
    assert!(world.hosts[A].state(&world.key(B)).allowed_ips.is_empty());
}

#[test]
fn allowed_ip_added_again_to_its_owner_remains() {
    let mut world = World::connected(13);
    let change = PeerChange { replace_allowed_ips: true, ..world.peer_change(B) };
    world.change_peer(A, change.clone());
    world.change_peer(A, PeerChange { replace_allowed_ips: false, ..change });
    assert_eq!(world.hosts[A].state(&world.key(B)).allowed_ips.len(), 1);
    world.assert_flows(A, B);
}

/// Known bug elsewhere: a wider network allows spoofing of a narrower one.
#[test]
fn peer_with_a_wide_network_cannot_send_from_a_narrower_one_of_another_peer() {
    let mut world = star(14);
    let change =
        PeerChange { allowed_ips: vec![allowed("10.0.0.0/8")], ..PeerChange::new(world.key(C)) };
    world.change_peer(A, change);
    for (source, number) in [([10, 0, 0, 2], 1), ([10, 9, 9, 9], 2), ([11, 0, 0, 1], 3)] {
        let packet = inner_packet(source.into(), inner(A).into(), number);
        world.act(C, |host, now| host.send(&[packet], now));
        world.run(secs(1));
    }
    assert_eq!(world.received(A), [2], "only B may send from its address");
    assert_eq!(world.hosts[A].dropped(DropReason::InSpoofed), 2);
}

#[test]
fn packet_without_a_peer_is_dropped_and_counted() {
    let mut world = World::connected(15);
    let packet = inner_packet(inner(A).into(), [172, 16, 0, 1].into(), 1);
    world.act(A, |host, now| host.send(&[packet], now));
    assert_eq!(world.hosts[A].dropped(DropReason::OutNoPeer), 1);
}

#[test]
fn new_endpoint_is_used_at_once() {
    let mut world = World::connected(16);
    let address = "203.0.113.5:5".parse().unwrap();
    world.hosts[B].address = address;
    let change = PeerChange { endpoint: Some(address), ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    world.assert_flows(A, B);
}

#[test]
fn state_contains_the_configured_values() {
    let mut world = World::pair(17);
    let psk = PresharedKey::from_bytes(&[8; 32]);
    let change = PeerChange {
        preshared_key: Some(psk.clone()),
        persistent_keepalive: Some(25),
        allowed_ips: vec![allowed("fd00::/64"), allowed("10.1.2.3/8")],
        ..PeerChange::new(world.key(B))
    };
    world.change_peer(A, change);
    let state = world.hosts[A].state(&world.key(B));
    assert_eq!((state.preshared_key, state.persistent_keepalive), (psk, 25));
    let nets: Vec<String> = state.allowed_ips.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.0.0.0/8", "10.0.0.2/32", "fd00::/64"], "host bits are off");
}

#[test]
fn bytes_of_every_datagram_are_counted_once() {
    let mut world = World::connected(18);
    world.assert_flows(A, B);
    world.run(secs(30));
    let sent: u64 = world
        .wire
        .iter()
        .filter(|sent| sent.from == world.hosts[A].address)
        .map(|sent| sent.bytes.len() as u64)
        .sum();
    assert_eq!(world.hosts[A].state(&world.key(B)).tx_bytes, sent);
    assert_eq!(world.hosts[B].state(&world.key(A)).rx_bytes, sent);
}
