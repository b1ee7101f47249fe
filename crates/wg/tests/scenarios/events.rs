//! What a subscriber is told of peers.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use packet::Endpoint;
use wg::{Event, config::PeerChange};

use crate::support::*;

fn elsewhere() -> SocketAddr {
    "203.0.113.9:4444".parse().unwrap()
}

/// Subscribes to a host's events; how often its waker was called.
fn subscribe(world: &mut World, host: Id) -> Arc<AtomicUsize> {
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = woken.clone();
    let waker = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    world.act(host, |host, _| host.control.subscribe(waker));
    woken
}

/// All but that handshakes are wanted.
fn events(world: &World, host: Id) -> Vec<Event> {
    let mut told = all_events(world, host);
    told.retain(|event| !matches!(event, Event::HandshakeWanted(_)));
    told
}

fn all_events(world: &World, host: Id) -> Vec<Event> {
    std::iter::from_fn(|| world.hosts[host].device.events.poll()).collect()
}

/// A subscriber at A, which has a session with B and sent nothing that is unanswered.
fn connected(seed: u64) -> World {
    let mut world = World::pair(seed);
    subscribe(&mut world, A);
    world.assert_flows(A, B);
    events(&world, A);
    world
}

fn new_path(world: &World, peer: Id, address: SocketAddr) -> Event {
    Event::NewPath { peer: world.key(peer), from: Endpoint::new(address) }
}

#[test]
fn whoever_has_something_to_send_is_told_at_once_that_a_handshake_is_wanted() {
    let mut world = World::pair(9);
    let woken = subscribe(&mut world, A);
    world.gate(|_| false);
    world.send(A, B);
    world.run(millis(1));
    assert_eq!(all_events(&world, A), [Event::HandshakeWanted(world.key(B))]);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    world.send(A, B);
    world.run(secs(1));
    assert_eq!(all_events(&world, A), [], "it has begun");
}

#[test]
fn both_sides_are_told_that_a_handshake_is_done_and_where_the_other_was_heard_first() {
    let mut world = World::pair(1);
    let woken = [A, B].map(|host| subscribe(&mut world, host));
    world.send(A, B);
    world.run(millis(100));
    for (host, peer) in [(A, B), (B, A)] {
        assert!(woken[host].load(Ordering::Relaxed) > 0);
        let address = world.hosts[peer].address;
        let expected = [Event::HandshakeDone(world.key(peer)), new_path(&world, peer, address)];
        let mut told = events(&world, host);
        told.sort_by_key(|event| matches!(event, Event::NewPath { .. }));
        assert_eq!(told, expected);
    }
}

#[test]
fn without_a_subscriber_nothing_is_noted() {
    let mut world = World::pair(2);
    world.assert_flows(A, B);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(30));
    assert_eq!((events(&world, A), events(&world, B)), (vec![], vec![]));
}

#[test]
fn the_first_packet_from_elsewhere_is_told_and_the_next_ones_are_not() {
    for roaming in [true, false] {
        let mut world = connected(3);
        let change = PeerChange { roaming: Some(roaming), ..PeerChange::new(world.key(B)) };
        world.change_peer(A, change);
        let home = world.hosts[B].address;
        for address in [elsewhere(), home] {
            world.hosts[B].address = address;
            for _ in 0..3 {
                world.send(B, A);
                world.run(millis(20));
            }
            assert_eq!(events(&world, A), [new_path(&world, B, address)]);
        }
    }
}

#[test]
fn what_is_not_authentic_is_no_path() {
    let mut world = connected(4);
    for sent in world.wire.clone() {
        let mut forged = sent.bytes.clone();
        *forged.last_mut().unwrap() ^= 1;
        for bytes in [sent.bytes, forged] {
            world.inject(&bytes, elsewhere(), A);
        }
        world.run(millis(10));
    }
    assert_eq!(events(&world, A), []);
}

#[test]
fn a_peer_that_does_not_answer_data_for_five_seconds_is_stale_once_until_it_is_heard() {
    let mut world = connected(5);
    world.gate(|_| false);
    world.send(A, B);
    world.run(millis(4_900));
    assert_eq!(events(&world, A), []);
    world.run(millis(200));
    assert_eq!(events(&world, A), [Event::Stale(world.key(B))]);
    for _ in 0..30 {
        world.send(A, B);
        world.run(secs(1));
    }
    assert_eq!(events(&world, A), [], "it was told");

    world.open_gate();
    world.run(secs(6));
    world.assert_flows(A, B);
    events(&world, A);
    world.gate(|_| false);
    world.send(A, B);
    world.run(millis(5_100));
    assert_eq!(events(&world, A), [Event::Stale(world.key(B))], "stale again");
}

#[test]
fn a_peer_that_does_not_answer_an_initiation_is_stale() {
    let mut world = World::pair(6);
    subscribe(&mut world, A);
    world.gate(|_| false);
    world.send(A, B);
    world.run(millis(4_900));
    assert_eq!(events(&world, A), []);
    world.run(secs(1));
    assert_eq!(events(&world, A), [Event::Stale(world.key(B))]);
    world.run(secs(60));
    assert_eq!(events(&world, A), []);
}

#[test]
fn who_answers_is_not_stale_and_neither_is_who_is_sent_nothing() {
    let mut world = connected(7);
    for _ in 0..400 {
        world.send(A, B);
        world.run(millis(500));
        world.send(B, A);
        world.run(millis(500));
    }
    world.run(secs(200));
    let stale = Event::Stale(world.key(B));
    let told = events(&world, A);
    assert!(!told.contains(&stale), "{told:?}");
}

#[test]
fn a_subscriber_that_comes_later_hears_of_what_is_unanswered_then() {
    let mut world = World::connected(8);
    world.gate(|_| false);
    world.run(secs(11));
    world.send(A, B);
    world.run(secs(2));
    subscribe(&mut world, A);
    world.run(millis(3_100));
    assert_eq!(events(&world, A), [Event::Stale(world.key(B))]);
}

#[test]
fn a_subscriber_that_never_polls_has_one_place_a_peer_and_none_for_those_removed() {
    let mut world = connected(9);
    for _ in 0..20 {
        for address in [elsewhere(), world.hosts[B].address] {
            let home = std::mem::replace(&mut world.hosts[B].address, address);
            world.send(B, A);
            world.run(millis(20));
            world.hosts[B].address = home;
        }
    }
    let home = world.hosts[B].address;
    assert_eq!(events(&world, A), [new_path(&world, B, home)], "the newest of forty");

    world.hosts[B].address = elsewhere();
    world.send(B, A);
    world.run(millis(20));
    let change = PeerChange { remove: true, ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    assert_eq!(events(&world, A), []);
}
