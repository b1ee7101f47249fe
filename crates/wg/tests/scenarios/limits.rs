//! The end of a session by its messages and by its age.

use wg::{
    DropReason,
    constants::{REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME},
};

use crate::support::*;

/// Known bug elsewhere: messages after Reject-After-Messages, and a wrapped nonce.
#[test]
fn no_message_is_sent_with_a_counter_at_the_limit() {
    let mut world = World::connected(1);
    world.run(secs(6));
    world.gate(|sent| sent.what != What::Initiation);
    let session = world.hosts[A].last.clone().unwrap();
    session.keypair.send.skip_to(REJECT_AFTER_MESSAGES - 3);
    let before = world.sent(A, What::Data).len();
    let numbers: Vec<u32> = (0..10).map(|_| world.send(A, B)).collect();
    let counters: Vec<u64> =
        world.sent(A, What::Data)[before..].iter().map(|sent| sent.counter()).collect();
    let last = REJECT_AFTER_MESSAGES - 1;
    assert_eq!(counters, [last - 2, last - 1, last]);
    world.run(millis(100));
    assert!(world.received(B).ends_with(&numbers[..3]));

    world.open_gate();
    world.run(secs(6));
    assert!(world.received(B).ends_with(&numbers), "the others waited for the new session");
}

/// Known bug elsewhere: messages after Reject-After-Messages, and a wrapped nonce.
#[test]
fn batch_larger_than_the_remaining_counters_reserves_none() {
    for left in [0, 1, 63] {
        let mut world = World::connected(2);
        world.run(secs(6));
        world.gate(|sent| sent.what != What::Initiation);
        let session = world.hosts[A].last.clone().unwrap();
        session.keypair.send.skip_to(REJECT_AFTER_MESSAGES - left);
        let before = world.sent(A, What::Data).len();
        let numbers = world.send_many(A, B, 64);
        assert_eq!(world.sent(A, What::Data).len(), before);
        world.open_gate();
        world.run(secs(6));
        assert!(world.received(B).ends_with(&numbers));
    }
}

#[test]
fn reservations_of_any_size_never_exceed_the_limit() {
    let world = World::connected(3);
    let now = world.now(A).time;
    let host = &world.hosts[A];
    let session = host.last.clone().unwrap();
    let peer = host.device.route(inner(B).into()).unwrap();
    for size in [1, 2, 1 << 12, 1 << 40, u64::MAX - 1, u64::MAX] {
        for start in [0, REJECT_AFTER_MESSAGES - 1, REJECT_AFTER_MESSAGES, u64::MAX] {
            session.keypair.send.skip_to(start);
            if let Ok(reservation) = host.device.reserve(&peer, size, now) {
                let end = reservation.counter.checked_add(size);
                assert!(end.is_some_and(|end| end <= REJECT_AFTER_MESSAGES), "{size} at {start}");
            }
        }
    }
}

#[test]
fn authentic_message_with_a_counter_at_the_limit_is_refused() {
    let mut world = World::connected(4);
    let session = world.hosts[A].last.clone().unwrap();
    let packet = inner_packet(inner(A).into(), inner(B).into(), 1000);
    let from = world.hosts[A].address;
    for counter in [REJECT_AFTER_MESSAGES, REJECT_AFTER_MESSAGES + 1, u64::MAX] {
        world.inject(&seal_one(&session, counter, &packet), from, B);
    }
    world.run(millis(10));
    assert_eq!(world.hosts[B].dropped(DropReason::InExpired), 3);
    world.inject(&seal_one(&session, REJECT_AFTER_MESSAGES - 1, &packet), from, B);
    world.run(millis(10));
    assert_eq!(world.received(B).last(), Some(&1000));
}

/// Known bug elsewhere: a 32-bit nonce counter.
#[test]
fn counters_continue_past_32_bits() {
    let mut world = World::connected(5);
    let session = world.hosts[A].last.clone().unwrap();
    session.keypair.send.skip_to(u64::from(u32::MAX) - 4);
    let numbers: Vec<u32> = (0..10).map(|_| world.send(A, B)).collect();
    world.run(millis(100));
    assert!(world.received(B).ends_with(&numbers));
    let last = world.sent(A, What::Data).last().unwrap().counter();
    assert_eq!(last, u64::from(u32::MAX) + 5);
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
}

#[test]
fn expired_session_sends_nothing_on_either_side() {
    for host in [A, B] {
        let mut world = World::connected(6);
        world.gate(|sent| matches!(sent.what, What::Data | What::Keepalive));
        world.run(REJECT_AFTER_TIME - secs(1));
        world.send(host, 1 - host);
        let before = world.sent(host, What::Data).len();
        world.run(secs(1));
        let number = world.send(host, 1 - host);
        assert_eq!(world.sent(host, What::Data).len(), before);
        assert!(!world.sent(host, What::Initiation).is_empty(), "it starts a handshake");
        world.run(millis(100));
        assert!(!world.received(1 - host).contains(&number));
        world.open_gate();
        world.run(secs(6));
        assert_eq!(world.received(1 - host).last(), Some(&number));
    }
}

#[test]
fn expired_session_receives_nothing_on_either_side() {
    let mut world = World::connected(7);
    world.assert_flows(A, B);
    let sessions = [A, B].map(|host| world.hosts[host].last.clone().unwrap());
    let addresses = [A, B].map(|host| world.hosts[host].address);
    let deliver = |world: &mut World, counter: u64| {
        for host in [A, B] {
            let packet = inner_packet(inner(host).into(), inner(1 - host).into(), counter as u32);
            let datagram = seal_one(&sessions[host], counter, &packet);
            world.inject(&datagram, addresses[host], 1 - host);
        }
        world.run(millis(1));
    };
    world.gate(|_| false);
    world.run(REJECT_AFTER_TIME - secs(1));
    deliver(&mut world, 500);
    world.run(secs(1));
    deliver(&mut world, 501);
    for host in [A, B] {
        assert_eq!(world.received(host).last(), Some(&500));
        assert_eq!(world.hosts[host].dropped(DropReason::InExpired), 1);
    }
}
