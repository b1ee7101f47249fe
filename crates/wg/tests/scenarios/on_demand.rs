//! Peers that are looked up when they come, or when somebody sends to them.

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

/// A host B that looks peers up, of which it has none, and A, to which it is one.
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

fn asked(world: &World) -> Vec<PublicKey> {
    let events = std::iter::from_fn(|| world.hosts[B].device.events.poll());
    let keys = events.filter_map(|event| match event {
        Event::UnknownPeer { key, .. } => Some(key),
        _ => None,
    });
    keys.collect()
}

fn admit(world: &mut World, peer: Id) {
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
fn who_becomes_a_peer_in_time_is_answered_without_another_try() {
    let mut world = world(1);
    world.send(A, B);
    world.run(millis(15));
    assert_eq!(asked(&world), [world.key(A)]);
    assert_eq!(world.sent(B, What::Response).len(), 0);
    world.run(millis(500));
    admit(&mut world, A);
    world.run(millis(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
    assert_eq!(world.received(B).len(), 1);
    world.assert_flows(B, A);
}

#[test]
fn who_becomes_a_peer_too_late_is_answered_at_its_next_try() {
    let mut world = world(2);
    world.gate(|_| false);
    world.send(A, B);
    let initiation = world.sent(A, What::Initiation)[0].bytes.clone();
    let home = world.hosts[A].address;
    world.inject(&initiation, home, B);
    world.run(millis(5_050));
    admit(&mut world, A);
    world.run(millis(50));
    assert_eq!(world.sent(B, What::Response).len(), 0, "that session would be of nobody");
    world.open_gate();
    world.run(secs(6));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn who_is_nobodys_peer_is_asked_about_once_a_try_and_never_answered() {
    let mut world = world(3);
    world.send(A, B);
    world.run(secs(21));
    let tries = world.sent(A, What::Initiation).len();
    assert_eq!((tries, asked(&world).len()), (5, 5));
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeUnknownPeer), 5);
    let initiation = world.sent(A, What::Initiation)[4].bytes.clone();
    let home = world.hosts[A].address;
    for _ in 0..10 {
        world.inject(&initiation, home, B);
    }
    world.run(millis(100));
    assert_eq!(asked(&world), [], "it is asked about already");
    assert_eq!(world.times(B, What::Response), []);
    assert!(!world.wire.iter().any(|sent| sent.from == world.hosts[B].address));
}

/// Else whoever recorded an initiation would have its answer sent to himself.
#[test]
fn an_initiation_that_is_repeated_does_not_take_the_place_of_a_newer_one() {
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
    admit(&mut world, A);
    world.run(millis(100));
    let responses = world.sent(B, What::Response);
    assert_eq!((responses.len(), responses[0].to), (1, home));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn nobody_is_asked_about_where_that_is_off() {
    let mut world = world(4);
    world.act(B, |host, _| host.control.set_peer_lookup(false));
    world.send(A, B);
    world.run(millis(100));
    world.act(B, |host, now| host.device.report_unknown_address([10, 1, 1, 1].into(), now.time));
    assert_eq!(world.hosts[B].device.events.poll(), None);
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeUnknownPeer), 1);
}

#[test]
fn what_was_kept_ends_with_the_interface() {
    let mut world = world(13);
    world.send(A, B);
    world.run(millis(15));
    world.act(B, |host, _| host.control.down());
    world.act(B, |host, _| host.control.up());
    admit(&mut world, A);
    world.run(millis(100));
    assert_eq!(world.sent(B, What::Response).len(), 0);
    world.run(secs(6));
    assert_eq!(world.received(B).len(), 1, "the next try succeeds");
}

#[test]
fn a_name_without_its_private_key_and_a_wrong_mac_are_not_asked_about() {
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
    assert_eq!(asked(&world), []);
    let dropped = |reason| world.hosts[B].dropped(reason);
    assert_eq!(dropped(DropReason::HandshakeForged), 3);
    assert_eq!(dropped(DropReason::HandshakeInvalidMac), 1);
}

#[test]
fn a_flood_from_made_up_addresses_is_bounded_and_its_answers_are_shorter() {
    const FLOOD: u32 = 2_000;
    let mut world = world(6);
    let to = world.key(B);
    for (number, stranger) in (0..FLOOD).zip(strangers(6)) {
        world.inject(&stranger.initiation(&to, number, stamp(1, 0)), address(number), B);
    }
    world.run(millis(10));
    let told = asked(&world).len();
    assert!((1..=21).contains(&told), "{told} of {FLOOD} at one moment");
    let replies = world.sent(B, What::CookieReply);
    assert_eq!(replies.len() + told, FLOOD as usize, "one each for all others");
    assert!(replies.iter().all(|reply| reply.bytes.len() < INITIATION_LEN));
    assert_eq!(world.sent(B, What::Response).len(), 0);
}

#[test]
fn a_flood_keeps_out_neither_peers_nor_a_newcomer_that_answers_from_its_address() {
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
    assert_eq!(received, 1, "a peer has no part in it");
    let replies = world.sent(B, What::CookieReply);
    let home = world.hosts[A].address;
    assert_eq!(replies.iter().filter(|reply| reply.to == home).count(), 1);

    flood_for(&mut world, 6_000);
    assert!(asked(&world).contains(&world.key(A)), "it has proved its address");
    admit(&mut world, A);
    flood_for(&mut world, 100);
    assert_eq!(world.received(B).len(), 2);
}

#[test]
fn a_newcomer_that_floods_with_a_valid_cookie_uses_up_its_own_share_only() {
    let mut world = world(13);
    world.send(A, B);
    run_loaded(&mut world, B, 7);
    let stamped = world.sent(A, What::Initiation)[1].clone();
    assert!(has_mac2(&stamped));
    // The load ends.
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
fn newcomers_in_number_need_no_peer_before_they_come() {
    let mut world = world(8);
    let guests: Vec<Id> = (0..60).map(|_| world.add_host()).collect();
    for &guest in &guests {
        world.introduce(guest, B);
    }
    assert_eq!(world.hosts[B].control.peers().len(), 0);
    for &guest in &guests {
        world.send(guest, B);
        world.run(millis(12));
        assert_eq!(asked(&world), [world.key(guest)]);
        admit(&mut world, guest);
    }
    world.run(millis(100));
    assert_eq!(world.received(B).len(), guests.len());
    assert_eq!(world.hosts[B].control.peers().len(), guests.len());
}

#[test]
fn what_was_kept_ends_with_the_key_that_it_was_for() {
    let mut world = world(9);
    world.send(A, B);
    world.run(millis(15));
    let key = PrivateKey::generate(&mut ChaCha20Rng::seed_from_u64(99));
    let change = DeviceChange { private_key: Some(Some(key)), ..Default::default() };
    world.apply(B, change);
    let drops =
        |world: &World| DropReason::ALL.iter().map(|r| world.hosts[B].dropped(*r)).sum::<u64>();
    let before = drops(&world);
    admit(&mut world, A);
    world.run(millis(100));
    assert_eq!(drops(&world), before, "it is not even looked at");
}

#[test]
fn an_address_of_nobody_is_asked_about_once_in_a_while() {
    let mut world = world(10);
    let packet_to = |world: &mut World, last: u8| {
        world.act(B, |host, now| {
            host.device.report_unknown_address([10, 9, 0, last].into(), now.time)
        });
    };
    let asked = |world: &World| {
        std::iter::from_fn(|| world.hosts[B].device.events.poll()).collect::<Vec<_>>()
    };
    for _ in 0..1_000 {
        packet_to(&mut world, 1);
        packet_to(&mut world, 2);
        world.run(millis(4));
    }
    let once = [1, 2].map(|last| Event::UnknownAddress([10, 9, 0, last].into()));
    assert_eq!(asked(&world), once);
    world.run(secs(2));
    packet_to(&mut world, 1);
    assert_eq!(asked(&world), once[..1]);
}

#[test]
fn a_scan_of_addresses_asks_so_many_questions_and_no_more() {
    let mut world = world(11);
    for number in 0..100_000_u32 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | number).into();
        world.act(B, |host, now| host.device.report_unknown_address(address, now.time));
    }
    let asked = std::iter::from_fn(|| world.hosts[B].device.events.poll()).count();
    assert_eq!(asked, wg::constants::LOOKUPS_MOST);
}

#[test]
fn a_peer_that_is_removed_while_its_initiation_waits_is_no_peer() {
    let mut world = world(12);
    world.send(A, B);
    world.run(millis(15));
    let add = world.peer_change(A);
    let remove = PeerChange { remove: true, ..PeerChange::new(world.key(A)) };
    world.apply(B, DeviceChange { peers: vec![add, remove], ..Default::default() });
    world.run(millis(100));
    assert_eq!(world.sent(B, What::Response).len(), 0);
}
