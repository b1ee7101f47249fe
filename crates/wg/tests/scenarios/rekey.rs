//! Renewal of sessions, and packets during it.

use wg::{
    DropReason,
    constants::{REKEY_AFTER_MESSAGES, REKEY_AFTER_TIME, WIPE_AFTER_TIME},
};

use crate::support::*;

#[test]
fn initiator_renews_an_old_session_when_it_sends() {
    let mut world = World::connected(1);
    world.run(REKEY_AFTER_TIME - secs(1));
    world.assert_flows(A, B);
    assert_eq!(world.sent(A, What::Initiation).len(), 1, "not before its time");
    world.run(secs(1));
    let old = world.sent(A, What::Data)[0].bytes[4..8].to_vec();
    let number = world.send(A, B);
    assert_eq!(world.sent(A, What::Initiation).len(), 2);
    assert_eq!(
        world.sent(A, What::Data).last().unwrap().bytes[4..8],
        old,
        "data does not wait for the handshake"
    );
    world.run(millis(100));
    assert!(world.received(B).contains(&number));
    world.assert_flows(A, B);
    assert_ne!(world.sent(A, What::Data).last().unwrap().bytes[4..8], old, "the new session");
}

#[test]
fn responder_does_not_renew_an_old_session() {
    let mut world = World::connected(2);
    world.run(REKEY_AFTER_TIME);
    for _ in 0..30 {
        world.send(B, A);
        world.run(secs(1));
    }
    assert!(world.sent(B, What::Initiation).is_empty());
    assert_eq!(
        world.sent(A, What::Initiation).len(),
        2,
        "its keepalive is sent in the old session"
    );
    assert_eq!(world.received(A).len(), 30);
}

#[test]
fn idle_session_is_not_renewed() {
    let mut world = World::connected(3);
    world.run(secs(170));
    for host in [A, B] {
        assert!(world.sent(host, What::Initiation).len() <= 1);
    }
    assert!(world.hosts[A].wakeups + world.hosts[B].wakeups < 10);
}

/// Paper 6.2: 165 s = REJECT_AFTER_TIME - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT.
#[test]
fn initiator_that_only_receives_renews_its_session_before_it_dies() {
    let mut world = World::connected(4);
    world.run(secs(164));
    world.send(B, A);
    world.run(millis(500));
    assert_eq!(world.sent(A, What::Initiation).len(), 1, "not yet");
    world.run(secs(1));
    world.gate(|sent| sent.what != What::Initiation);
    for _ in 0..5 {
        world.send(B, A);
        world.run(millis(100));
    }
    assert_eq!(world.sent(A, What::Initiation).len(), 2);
    world.open_gate();
    world.run(secs(6));
    world.assert_flows(A, B);
    assert!(world.sent(B, What::Initiation).is_empty());
}

#[test]
fn either_side_renews_a_session_after_too_many_messages() {
    for host in [A, B] {
        let mut world = World::connected(5);
        world.assert_flows(A, B);
        world.run(secs(6));
        let session = world.hosts[host].last.clone().unwrap();
        session.keypair.send.skip_to(REKEY_AFTER_MESSAGES - 1);
        let initiations = world.sent(host, What::Initiation).len();
        world.send(host, 1 - host);
        world.run(millis(100));
        assert_eq!(world.sent(host, What::Initiation).len(), initiations, "the last before");
        world.send(host, 1 - host);
        world.run(millis(100));
        assert_eq!(world.sent(host, What::Initiation).len(), initiations + 1);
        world.assert_flows(A, B);
        assert!(world.sent(host, What::Data).last().unwrap().counter() < 10, "a new session");
    }
}

#[test]
fn batch_that_crosses_the_message_limit_renews_the_session() {
    let mut world = World::connected(6);
    world.run(secs(6));
    let session = world.hosts[A].last.clone().unwrap();
    session.keypair.send.skip_to(REKEY_AFTER_MESSAGES - 2);
    world.send_many(A, B, 64);
    assert_eq!(world.sent(A, What::Initiation).len(), 2);
}

/// Data of the old session is not lost, whether it is in flight or sent by a side that has not
/// switched yet.
#[test]
fn old_session_receives_during_a_renewal_in_both_roles() {
    let mut world = World::connected(7);
    world.run(REKEY_AFTER_TIME);
    world.gate(|sent| sent.what != What::Data);
    let late_to_b = world.send(A, B);
    let late_to_a = world.send(B, A);
    let late_a = world.sent(A, What::Data).last().unwrap().bytes.clone();
    let late_b = world.sent(B, What::Data).last().unwrap().bytes.clone();
    world.run(millis(25));
    world.open_gate();
    world.run(millis(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 2);
    world.assert_flows(A, B);

    let (from_a, from_b) = (world.hosts[A].address, world.hosts[B].address);
    world.inject(&late_a, from_a, B);
    world.inject(&late_b, from_b, A);
    world.run(millis(10));
    assert_eq!(world.received(B).last(), Some(&late_to_b));
    assert_eq!(world.received(A).last(), Some(&late_to_a));
    world.inject(&late_a, from_a, B);
    world.run(millis(10));
    assert_eq!(world.hosts[B].dropped(DropReason::InReplayed), 1);
}

#[test]
fn session_two_handshakes_old_receives_nothing() {
    let mut world = World::connected(8);
    world.gate(|sent| sent.what != What::Data);
    world.send(A, B);
    let late = world.sent(A, What::Data).last().unwrap().bytes.clone();
    world.open_gate();
    for _ in 0..2 {
        let session = world.hosts[A].last.clone().unwrap();
        world.run(secs(6));
        session.keypair.send.skip_to(REKEY_AFTER_MESSAGES);
        world.send(A, B);
        world.run(secs(1));
        world.assert_flows(A, B);
    }
    assert_eq!(world.sent(A, What::Initiation).len(), 3);
    world.inject(&late, world.hosts[A].address, B);
    world.run(millis(10));
    assert_eq!(world.hosts[B].dropped(DropReason::InUnknownIndex), 1);
}

#[test]
fn renewal_under_traffic_loses_and_reorders_nothing() {
    let mut world = World::connected(9);
    world.run(REKEY_AFTER_TIME - millis(500));
    let numbers: Vec<u32> = (0..1000)
        .map(|_| {
            let number = world.send(A, B);
            world.run(millis(1));
            number
        })
        .collect();
    world.run(millis(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 2);
    assert!(world.received(B).ends_with(&numbers));
}

#[test]
fn dead_session_is_wiped_and_its_index_removed() {
    let mut world = World::connected(10);
    world.gate(|sent| sent.what != What::Data);
    world.send(A, B);
    world.send(B, A);
    let to_b = world.sent(A, What::Data).last().unwrap().bytes.clone();
    let to_a = world.sent(B, What::Data).last().unwrap().bytes.clone();
    world.gate(|_| false);
    let (from_a, from_b) = (world.hosts[A].address, world.hosts[B].address);
    let deliver = |world: &mut World| {
        world.inject(&to_b, from_a, B);
        world.inject(&to_a, from_b, A);
        world.run(millis(10));
    };
    world.run(WIPE_AFTER_TIME - secs(2));
    deliver(&mut world);
    for host in [A, B] {
        assert_eq!(world.hosts[host].dropped(DropReason::InExpired), 1);
        assert_eq!(world.hosts[host].dropped(DropReason::InUnknownIndex), 0);
    }
    world.run(secs(2));
    deliver(&mut world);
    for host in [A, B] {
        assert_eq!(world.hosts[host].dropped(DropReason::InUnknownIndex), 1);
    }
    world.open_gate();
    world.assert_flows(A, B);
}

/// The secrets of an abandoned attempt are wiped too, so a late response is refused.
#[test]
fn abandoned_initiation_is_wiped() {
    let mut world = World::pair(11);
    world.gate(|sent| sent.what == What::Initiation);
    world.send(A, B);
    world.run(secs(100));
    let response = world.sent(B, What::Response).last().unwrap().bytes.clone();
    world.run(WIPE_AFTER_TIME);
    world.inject(&response, world.hosts[B].address, A);
    world.run(millis(100));
    assert_eq!(world.hosts[A].dropped(DropReason::HandshakeUnexpected), 1);
}
