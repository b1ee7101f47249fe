//! Peers that do not roam: only configuration sets their endpoints, for example if another program
//! chooses the paths.

use std::net::SocketAddr;

use wg::{DropReason, config::PeerChange};

use crate::support::*;

fn elsewhere() -> SocketAddr {
    "203.0.113.9:4444".parse().unwrap()
}

fn endpoint(world: &World, host: Id, peer: Id) -> Option<SocketAddr> {
    world.hosts[host].state(&world.key(peer)).endpoint
}

fn fix(world: &mut World, host: Id, peer: Id) {
    let change = PeerChange { roaming: Some(false), ..PeerChange::new(world.key(peer)) };
    world.change_peer(host, change);
}

/// Two hosts that do not let each other roam.
fn fixed(seed: u64) -> World {
    let mut world = World::pair(seed);
    fix(&mut world, A, B);
    fix(&mut world, B, A);
    world
}

#[test]
fn neither_data_nor_keepalives_move_a_peer_that_does_not_roam() {
    for host in [A, B] {
        let mut world = fixed(1);
        world.assert_flows(A, B);
        let home = world.hosts[host].address;
        world.hosts[host].address = elsewhere();
        world.send(host, 1 - host);
        world.run(secs(11));
        assert_eq!(endpoint(&world, 1 - host, host), Some(home));
        assert!(world.received(1 - host).len() >= 2, "its packets are accepted");
        world.hosts[host].address = home;
        world.assert_flows(1 - host, host);
    }
}

#[test]
fn neither_initiations_nor_responses_move_a_peer_that_does_not_roam() {
    let mut world = fixed(2);
    let home = world.hosts[A].address;
    world.hosts[A].address = elsewhere();
    world.send(A, B);
    world.run(millis(15));
    assert_eq!(endpoint(&world, B, A), Some(home));
    let responses = world.sent(B, What::Response);
    assert_eq!(responses.len(), 1);
    assert_eq!(responses[0].to, home, "answered at the configured endpoint");

    let mut world = fixed(3);
    world.gate(|sent| sent.what != What::Response);
    world.send(A, B);
    world.run(millis(15));
    let response = world.sent(B, What::Response)[0].bytes.clone();
    world.open_gate();
    world.inject(&response, elsewhere(), A);
    world.run(secs(1));
    assert_eq!(endpoint(&world, A, B), Some(world.hosts[B].address));
    assert_eq!(world.received(B).len(), 1, "the handshake is done");
}

#[test]
fn cookies_do_not_move_a_peer_that_does_not_roam() {
    let mut world = fixed(4);
    let home = world.hosts[A].address;
    world.hosts[A].address = elsewhere();
    world.act(B, |host, now| host.control.set_under_load(now.time));
    world.send(A, B);
    world.run(millis(100));
    let cookies = world.sent(B, What::CookieReply);
    assert_eq!(cookies.len(), 1);
    assert_eq!(cookies[0].to, elsewhere(), "the cookie reply goes to the source address");
    world.run(secs(5));
    world.act(B, |host, now| host.control.set_under_load(now.time));
    world.run(secs(1));
    assert_eq!(world.sent(B, What::Response).len(), 1);
    assert_eq!(endpoint(&world, B, A), Some(home));
}

#[test]
fn initiation_of_a_fixed_peer_without_an_endpoint_is_not_answered() {
    let mut world = World::new(5);
    let (a, b) = (world.add_host(), world.add_host());
    world.introduce(a, b);
    let change = PeerChange { roaming: Some(false), ..world.peer_change(a) };
    world.change_peer(b, change);
    world.send(a, b);
    world.run(secs(1));
    assert_eq!(world.sent(b, What::Response).len(), 0);
    assert_eq!(world.hosts[b].dropped(DropReason::HandshakeNoEndpoint), 1);
    assert_eq!(endpoint(&world, b, a), None);

    let endpoint = Some(world.hosts[a].address);
    world.change_peer(b, PeerChange { endpoint, ..PeerChange::new(world.key(a)) });
    world.run(secs(6));
    assert_eq!(world.received(b).len(), 1, "the initiator's next try succeeds");
}

#[test]
fn peer_allowed_to_roam_again_moves() {
    let mut world = fixed(6);
    world.assert_flows(A, B);
    let change = PeerChange { roaming: Some(true), ..PeerChange::new(world.key(A)) };
    world.change_peer(B, change);
    world.hosts[A].address = elsewhere();
    world.send(A, B);
    world.run(millis(100));
    assert_eq!(endpoint(&world, B, A), Some(elsewhere()));
    world.assert_flows(B, A);
}
