//! Peer lookup: unknown senders and unknown destinations.

use std::{net::SocketAddr, sync::Arc};

use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use wg::{
    DropReason, Event, PrivateKey, PublicKey,
    config::{DeviceChange, PeerChange},
    message::INITIATION_LEN,
};

use crate::{
    cookies::{has_mac2, run_loaded},
    support::*,
};

/// A host B with peer lookup and without peers, and a host A that has B as a peer.
fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    let (a, b) = (world.add_host(), world.add_host());
    world.introduce(a, b);
    world.act(b, |host, _| {
        host.control.subscribe(Arc::new(|| {}));
        host.control.set_peer_lookup(true);
    });
    world
}

fn unknown_peers(world: &World) -> Vec<PublicKey> {
    let events = std::iter::from_fn(|| world.hosts[B].device.events.poll());
    let keys = events.filter_map(|event| match event {
        Event::UnknownPeer { key, .. } => Some(key),
        _ => None,
    });
    keys.collect()
}

fn add_peer(world: &mut World, peer: Id) {
    let change = world.peer_change(peer);
    world.change_peer(B, change);
}

fn strangers(seed: u64) -> impl Iterator<Item = Stranger> {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    std::iter::repeat_with(move || Stranger::with(&PrivateKey::generate(&mut rng)))
}

fn address(number: u32) -> SocketAddr {
    ([198, 18, (number >> 8) as u8, number as u8], 4242).into()
}

#[test]
fn sender_added_in_time_is_answered_without_a_retry() {
    let mut world = world(1);
    world.send(A, B);
    world.run(millis(15));
    assert_eq!(unknown_peers(&world), [world.key(A)]);
    assert_eq!(world.sent(B, What::Response).len(), 0);
    world.run(millis(500));
    add_peer(&mut world, A);
    world.run(millis(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
    assert_eq!(world.received(B).len(), 1);
    world.assert_flows(B, A);
}

#[test]
fn sender_added_too_late_is_answered_at_its_next_try() {
    let mut world = world(2);
    world.gate(|_| false);
    world.send(A, B);
    let initiation = world.sent(A, What::Initiation)[0].bytes.clone();
    let home = world.hosts[A].address;
    world.inject(&initiation, home, B);
    world.run(millis(5_050));
    add_peer(&mut world, A);
    world.run(millis(50));
    assert_eq!(world.sent(B, What::Response).len(), 0, "the stored initiation has expired");
    world.open_gate();
    world.run(secs(6));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn unknown_sender_posts_one_event_a_try_and_is_not_answered() {
    let mut world = world(3);
    world.send(A, B);
    world.run(secs(21));
    let tries = world.sent(A, What::Initiation).len();
    assert_eq!((tries, unknown_peers(&world).len()), (5, 5));
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeUnknownPeer), 5);
    let initiation = world.sent(A, What::Initiation)[4].bytes.clone();
    let home = world.hosts[A].address;
    for _ in 0..10 {
        world.inject(&initiation, home, B);
    }
    world.run(millis(100));
    assert_eq!(unknown_peers(&world), [], "the event was posted before");
    assert_eq!(world.times(B, What::Response), []);
    assert!(!world.wire.iter().any(|sent| sent.from == world.hosts[B].address));
}

/// Otherwise an attacker with a recorded initiation could redirect the response.
#[test]
fn replayed_initiation_does_not_replace_a_newer_one() {
    let mut world = world(14);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(6));
    let sent = world.sent(A, What::Initiation);
    let [old, new] = [0, 1].map(|at| sent[at].bytes.clone());
    world.open_gate();
    let home = world.hosts[A].address;
    for (bytes, from) in [(&new, home), (&old, address(1)), (&new, address(2))] {
        world.inject(bytes, from, B);
        world.run(millis(1));
    }
    add_peer(&mut world, A);
    world.run(millis(100));
    let responses = world.sent(B, What::Response);
    assert_eq!((responses.len(), responses[0].to), (1, home));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn disabled_peer_lookup_posts_no_events() {
    let mut world = world(4);
    world.act(B, |host, _| host.control.set_peer_lookup(false));
    world.send(A, B);
    world.run(millis(100));
    world.act(B, |host, now| host.device.report_unknown_address([10, 1, 1, 1].into(), now.time));
    assert_eq!(world.hosts[B].device.events.poll(), None);
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeUnknownPeer), 1);
}

#[test]
fn stored_initiation_is_dropped_when_the_interface_goes_down() {
    let mut world = world(13);
    world.send(A, B);
    world.run(millis(15));
    world.act(B, |host, _| host.control.down());
    world.act(B, |host, _| host.control.up());
    add_peer(&mut world, A);
    world.run(millis(100));
    assert_eq!(world.sent(B, What::Response).len(), 0);
    world.run(secs(6));
    assert_eq!(world.received(B).len(), 1, "the next try succeeds");
}

#[test]
fn claimed_key_without_proof_or_with_invalid_mac_posts_no_event() {
    let mut world = world(5);
    let (victim, to) = (world.key(A), world.key(B));
    let low_order = PublicKey::from(LOW_ORDER[1]);
    for (sender, name) in [(1, victim), (2, low_order), (3, to)] {
        let message = initiation_by(name.as_bytes(), [7; 32], &to, (sender, stamp(1, 0)));
        world.inject(&message, address(1), B);
    }
    let mut changed = strangers(5).next().unwrap().initiation(&to, 9, stamp(1, 0));
    changed[120] ^= 1;
    world.inject(&changed, address(1), B);
    world.run(millis(10));
    assert_eq!(unknown_peers(&world), []);
    let dropped = |reason| world.hosts[B].dropped(reason);
    assert_eq!(dropped(DropReason::HandshakeForged), 3);
    assert_eq!(dropped(DropReason::HandshakeInvalidMac), 1);
}

#[test]
fn flood_from_forged_addresses_posts_few_events_and_gets_short_replies() {
    const FLOOD: u32 = 2_000;
    let mut world = world(6);
    let to = world.key(B);
    for (number, stranger) in (0..FLOOD).zip(strangers(6)) {
        world.inject(&stranger.initiation(&to, number, stamp(1, 0)), address(number), B);
    }
    world.run(millis(10));
    let events = unknown_peers(&world).len();
    assert!((1..=21).contains(&events), "{events} of {FLOOD} at one time");
    let replies = world.sent(B, What::CookieReply);
    assert_eq!(replies.len() + events, FLOOD as usize, "one reply for each other sender");
    assert!(replies.iter().all(|reply| reply.bytes.len() < INITIATION_LEN));
    assert_eq!(world.sent(B, What::Response).len(), 0);
}

#[test]
fn flood_blocks_neither_peers_nor_a_new_sender_with_a_cookie() {
    let mut world = world(7);
    let c = world.add_host();
    for (host, peer) in [(c, B), (B, c)] {
        world.introduce(host, peer);
    }
    let to = world.key(B);
    let mut flood = strangers(7);
    let mut number = 0;
    let mut flood_for = |world: &mut World, duration| {
        for _ in 0..duration / 5 {
            let initiation = flood.next().unwrap().initiation(&to, number, stamp(1, 0));
            world.inject(&initiation, address(number), B);
            number += 1;
            world.run(millis(5));
        }
    };
    flood_for(&mut world, 1_000);
    world.send(A, B);
    world.send(c, B);
    flood_for(&mut world, 100);
    let received = world.received(B).len();
    assert_eq!(received, 1, "a peer is not affected");
    let replies = world.sent(B, What::CookieReply);
    let home = world.hosts[A].address;
    assert_eq!(replies.iter().filter(|reply| reply.to == home).count(), 1);

    flood_for(&mut world, 6_000);
    assert!(unknown_peers(&world).contains(&world.key(A)), "its address is proved");
    add_peer(&mut world, A);
    flood_for(&mut world, 100);
    assert_eq!(world.received(B).len(), 2);
}

#[test]
fn unknown_sender_flooding_with_a_valid_cookie_is_rate_limited() {
    let mut world = world(13);
    world.send(A, B);
    run_loaded(&mut world, B, 7);
    let stamped = world.sent(A, What::Initiation)[1].clone();
    assert!(has_mac2(&stamped));
    world.run(secs(2));
    let before = world.hosts[B].dropped(DropReason::HandshakeRateLimited);
    for _ in 0..2000 {
        world.inject(&stamped.bytes, stamped.from, B);
        world.run(millis(1));
    }
    let limited = world.hosts[B].dropped(DropReason::HandshakeRateLimited) - before;
    assert!(limited > 1900, "{limited}");
}

#[test]
fn sixty_unknown_senders_become_peers_on_demand() {
    let mut world = world(8);
    let guests: Vec<Id> = (0..60).map(|_| world.add_host()).collect();
    for &guest in &guests {
        world.introduce(guest, B);
    }
    assert_eq!(world.hosts[B].control.peers().len(), 0);
    for &guest in &guests {
        world.send(guest, B);
        world.run(millis(12));
        assert_eq!(unknown_peers(&world), [world.key(guest)]);
        add_peer(&mut world, guest);
    }
    world.run(millis(100));
    assert_eq!(world.received(B).len(), guests.len());
    assert_eq!(world.hosts[B].control.peers().len(), guests.len());
}

#[test]
fn stored_initiation_is_dropped_when_the_private_key_changes() {
    let mut world = world(9);
    world.send(A, B);
    world.run(millis(15));
    let key = PrivateKey::generate(&mut ChaCha20Rng::seed_from_u64(99));
    let change = DeviceChange { private_key: Some(Some(key)), ..Default::default() };
    world.apply(B, change);
    let drops =
        |world: &World| DropReason::ALL.iter().map(|r| world.hosts[B].dropped(*r)).sum::<u64>();
    let before = drops(&world);
    add_peer(&mut world, A);
    world.run(millis(100));
    assert_eq!(drops(&world), before, "the initiation is not handled");
}

#[test]
fn unknown_address_posts_one_event_per_lookup_timeout() {
    let mut world = world(10);
    let packet_to = |world: &mut World, last: u8| {
        world.act(B, |host, now| {
            host.device.report_unknown_address([10, 9, 0, last].into(), now.time);
        });
    };
    let address_events = |world: &World| {
        std::iter::from_fn(|| world.hosts[B].device.events.poll()).collect::<Vec<_>>()
    };
    for _ in 0..1_000 {
        packet_to(&mut world, 1);
        packet_to(&mut world, 2);
        world.run(millis(4));
    }
    let once = [1, 2].map(|last| Event::UnknownAddress([10, 9, 0, last].into()));
    assert_eq!(address_events(&world), once);
    world.run(secs(2));
    packet_to(&mut world, 1);
    assert_eq!(address_events(&world), once[..1]);
}

#[test]
fn scan_of_addresses_posts_a_limited_number_of_events() {
    let mut world = world(11);
    for number in 0..100_000_u32 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | number).into();
        world.act(B, |host, now| host.device.report_unknown_address(address, now.time));
    }
    let events = std::iter::from_fn(|| world.hosts[B].device.events.poll()).count();
    assert_eq!(events, wg::constants::MAX_LOOKUPS);
}

#[test]
fn peer_removed_while_its_initiation_waits_is_not_answered() {
    let mut world = world(12);
    world.send(A, B);
    world.run(millis(15));
    let add = world.peer_change(A);
    let remove = PeerChange { remove: true, ..PeerChange::new(world.key(A)) };
    world.apply(B, DeviceChange { peers: vec![add, remove], ..Default::default() });
    world.run(millis(100));
    assert_eq!(world.sent(B, What::Response).len(), 0);
}
