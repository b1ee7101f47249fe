//! A peer's endpoint moves only by its authentic packets.

use std::net::SocketAddr;

use packet::{Endpoint, Local};

use crate::support::*;

fn elsewhere() -> SocketAddr {
    "203.0.113.9:4444".parse().unwrap()
}

fn endpoint(world: &World, host: Id, peer: Id) -> SocketAddr {
    world.hosts[host].state(&world.key(peer)).endpoint.unwrap()
}

#[test]
fn data_from_a_new_address_moves_the_peer() {
    for host in [A, B] {
        let mut world = World::connected(1);
        world.assert_flows(A, B);
        let home = world.hosts[host].address;
        for address in [elsewhere(), "[2001:db8::7]:7".parse().unwrap(), home] {
            world.hosts[host].address = address;
            world.send(host, 1 - host);
            world.run(millis(100));
            assert_eq!(endpoint(&world, 1 - host, host), address);
            world.assert_flows(1 - host, host);
        }
    }
}

/// Known bug elsewhere: a client that never roams.
#[test]
fn initiator_follows_a_moved_responder() {
    let mut world = World::connected(2);
    world.hosts[B].address = elsewhere();
    world.send(A, B);
    world.run(secs(1));
    assert_eq!(world.received(B).len(), 1, "sent to the old address, and lost");
    world.send(B, A);
    world.run(millis(100));
    assert_eq!(endpoint(&world, A, B), elsewhere());
    world.assert_flows(A, B);
}

#[test]
fn keepalive_moves_the_peer() {
    let mut world = World::connected(3);
    world.hosts[B].address = elsewhere();
    world.run(secs(11));
    assert_eq!(world.sent(B, What::Keepalive).len(), 1);
    assert_eq!(endpoint(&world, A, B), elsewhere());
}

#[test]
fn initiation_and_response_move_the_peer() {
    let mut world = World::pair(4);
    world.hosts[A].address = elsewhere();
    world.send(A, B);
    world.run(millis(15));
    assert_eq!(endpoint(&world, B, A), elsewhere());

    let mut world = World::pair(5);
    world.gate(|sent| sent.what != What::Response);
    world.send(A, B);
    world.run(millis(15));
    let response = world.sent(B, What::Response)[0].bytes.clone();
    world.inject(&response, elsewhere(), A);
    world.run(millis(1));
    assert_eq!(endpoint(&world, A, B), elsewhere());
}

#[test]
fn replayed_and_forged_datagrams_do_not_move_a_peer() {
    let mut world = World::connected(6);
    world.assert_flows(A, B);
    let homes = [A, B].map(|host| world.hosts[host].address);
    for sent in world.wire.clone() {
        let to = homes.iter().position(|home| *home == sent.to).unwrap();
        world.inject(&sent.bytes, elsewhere(), to);
        for at in 0..sent.bytes.len() {
            let mut forged = sent.bytes.clone();
            forged[at] ^= 0x10;
            world.inject(&forged, elsewhere(), to);
        }
        world.run(millis(10));
    }
    assert_eq!(endpoint(&world, A, B), homes[B]);
    assert_eq!(endpoint(&world, B, A), homes[A]);
    world.assert_flows(A, B);
}

#[test]
fn data_of_an_old_session_does_not_move_the_peer() {
    let mut world = World::connected(7);
    world.gate(|sent| sent.what != What::Data);
    world.send(A, B);
    let late = world.sent(A, What::Data).last().unwrap().bytes.clone();
    world.gate(|_| false);
    world.run(secs(181));
    world.inject(&late, elsewhere(), B);
    world.run(millis(10));
    assert_eq!(endpoint(&world, B, A), world.hosts[A].address);
}

/// Answers leave from the address and interface that the peer reached, until the routes change or
/// data is unanswered.
#[test]
fn local_source_address_remains_until_it_is_cleared_or_unanswered() {
    let mut world = World::connected(8);
    let from = world.hosts[A].address;
    let local = Some(Local { addr: [192, 0, 2, 2].into(), interface: 3 });
    let reach = |world: &mut World| {
        world.send(A, B);
        let data = world.wire.last().unwrap().bytes.clone();
        let sticky = Endpoint { local, ..Endpoint::new(from) };
        world.act(B, |host, now| host.receive(&data, sticky, now));
    };
    let source = |world: &mut World| {
        world.send(B, A);
        world.hosts[B].last.as_ref().unwrap().endpoint.local
    };
    world.gate(|_| false);
    reach(&mut world);
    assert_eq!(source(&mut world), local);
    world.act(B, |host, _| {
        let sticky: Vec<_> = host.control.peers_with_source().map(|(key, _)| *key).collect();
        assert_eq!(sticky.len(), 1);
        host.control.clear_source(&sticky[0]);
        assert_eq!(host.control.peers_with_source().count(), 0);
    });
    assert_eq!(source(&mut world), None);
    reach(&mut world);
    assert_eq!(source(&mut world), local);
    // The second one is delayed by some milliseconds.
    let key = world.key(A);
    for _ in 0..2 {
        world.act(B, |host, now| host.control.handshake_now(&key, now)).unwrap();
    }
    world.run(millis(100));
    assert_eq!(world.sent(B, What::Initiation).len(), 2);
    assert_eq!(source(&mut world), local, "no initiation was unanswered for long");
    world.run(secs(16));
    assert_eq!(source(&mut world), None, "unanswered for 15 s");
    let remote = world.hosts[B].last.as_ref().unwrap().endpoint.remote;
    assert_eq!(remote.direct(), Some(from), "the remote endpoint does not change");
}
