//! Events about peers for a subscriber.

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

/// Subscribes to a host's events. Returns the count of waker calls.
fn subscribe(world: &mut World, host: Id) -> Arc<AtomicUsize> {
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = woken.clone();
    let waker = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    world.act(host, |host, _| host.control.subscribe(waker));
    woken
}

/// Takes all events except [`Event::HandshakeWanted`].
fn events(world: &World, host: Id) -> Vec<Event> {
    let mut events = all_events(world, host);
    events.retain(|event| !matches!(event, Event::HandshakeWanted(_)));
    events
}

fn all_events(world: &World, host: Id) -> Vec<Event> {
    std::iter::from_fn(|| world.hosts[host].device.events.poll()).collect()
}

/// A host A with a subscriber, a session with B and no unanswered data.
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
fn data_without_a_session_posts_handshake_wanted_at_once() {
    let mut world = World::pair(9);
    let woken = subscribe(&mut world, A);
    world.gate(|_| false);
    world.send(A, B);
    world.run(millis(1));
    assert_eq!(all_events(&world, A), [Event::HandshakeWanted(world.key(B))]);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    world.send(A, B);
    world.run(secs(1));
    assert_eq!(all_events(&world, A), [], "the handshake is in progress");
}

#[test]
fn completed_handshake_posts_its_event_and_the_path_on_both_sides() {
    let mut world = World::pair(1);
    let woken = [A, B].map(|host| subscribe(&mut world, host));
    world.send(A, B);
    world.run(millis(100));
    for (host, peer) in [(A, B), (B, A)] {
        assert!(woken[host].load(Ordering::Relaxed) > 0);
        let address = world.hosts[peer].address;
        let expected = [Event::HandshakeDone(world.key(peer)), new_path(&world, peer, address)];
        let mut events = events(&world, host);
        events.sort_by_key(|event| matches!(event, Event::NewPath { .. }));
        assert_eq!(events, expected);
    }
}

#[test]
fn without_a_subscriber_no_event_is_recorded() {
    let mut world = World::pair(2);
    world.assert_flows(A, B);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(30));
    assert_eq!((events(&world, A), events(&world, B)), (vec![], vec![]));
}

#[test]
fn only_the_first_packet_from_a_new_address_posts_an_event() {
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
fn replayed_and_forged_packets_post_no_path() {
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
fn unanswered_data_posts_stale_once_until_a_packet_arrives() {
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
    assert_eq!(events(&world, A), [], "the event was posted before");

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
fn unanswered_initiation_posts_stale() {
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
fn answering_and_idle_peers_are_not_stale() {
    let mut world = connected(7);
    for _ in 0..400 {
        world.send(A, B);
        world.run(millis(500));
        world.send(B, A);
        world.run(millis(500));
    }
    world.run(secs(200));
    let stale = Event::Stale(world.key(B));
    let events = events(&world, A);
    assert!(!events.contains(&stale), "{events:?}");
}

#[test]
fn late_subscriber_gets_stale_for_earlier_unanswered_data() {
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
fn unpolled_events_take_one_entry_a_peer_until_it_is_removed() {
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
