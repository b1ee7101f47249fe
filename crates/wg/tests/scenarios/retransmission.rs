//! Retransmission and abandonment of initiations.

use std::time::Duration;

use wg::{
    DropReason,
    config::DeviceChange,
    constants::{REKEY_ATTEMPT_TIME, REKEY_TIMEOUT, REKEY_TIMEOUT_JITTER},
};

use crate::support::*;

fn gaps(times: &[Duration]) -> Vec<Duration> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Known bug elsewhere: no jitter.
#[test]
fn unanswered_initiation_is_repeated_after_rekey_timeout_plus_jitter() {
    let mut world = World::pair(1);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(80));
    let gaps = gaps(&world.times(A, What::Initiation));
    assert!(gaps.len() >= 14);
    for gap in &gaps {
        assert!((REKEY_TIMEOUT..=REKEY_TIMEOUT + REKEY_TIMEOUT_JITTER).contains(gap), "{gap:?}");
    }
    let shortest = gaps.iter().min().unwrap();
    let longest = gaps.iter().max().unwrap();
    assert!(*longest - *shortest > millis(100), "{shortest:?} to {longest:?}");
}

#[test]
fn every_retransmission_is_a_new_initiation() {
    let mut world = World::pair(2);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(30));
    let mut seen = std::collections::HashSet::new();
    for sent in world.sent(A, What::Initiation) {
        assert!(seen.insert(sent.bytes[4..8].to_vec()), "a new index");
        assert!(seen.insert(sent.bytes[8..40].to_vec()), "a new ephemeral key");
    }
}

#[test]
fn attempt_ends_after_its_time_and_staged_packets_are_dropped() {
    let mut world = World::pair(3);
    world.gate(|_| false);
    world.send_many(A, B, 5);
    world.run(REKEY_ATTEMPT_TIME - secs(1));
    assert_eq!(world.hosts[A].dropped(DropReason::OutHandshakeFailed), 0);
    world.run(secs(1) + REKEY_TIMEOUT + REKEY_TIMEOUT_JITTER);
    assert_eq!(world.hosts[A].dropped(DropReason::OutHandshakeFailed), 5);
    let times = world.times(A, What::Initiation);
    assert!(*times.last().unwrap() < REKEY_ATTEMPT_TIME);
    let count = times.len();
    world.run(secs(600));
    assert_eq!(world.sent(A, What::Initiation).len(), count, "no more initiations");

    world.open_gate();
    let number = world.send(A, B);
    world.run(millis(100));
    assert_eq!(world.received(B), [number], "the next packet starts an attempt at once");
}

#[test]
fn attempt_continues_while_there_is_new_data_to_send() {
    let mut world = World::pair(5);
    world.gate(|_| false);
    for _ in 0..150 {
        world.send(A, B);
        world.run(secs(2));
    }
    assert_eq!(world.hosts[A].dropped(DropReason::OutHandshakeFailed), 0);
    world.open_gate();
    world.run(secs(6));
    let newest = world.received(B).len();
    assert_eq!(newest, wg::constants::MAX_STAGED_PACKETS, "the newest packets remain");
}

#[test]
fn packet_after_an_abandoned_attempt_starts_a_full_attempt() {
    let mut world = World::pair(4);
    world.gate(|_| false);
    world.send(A, B);
    world.run(secs(100));
    let before = world.sent(A, What::Initiation).len();
    world.send(A, B);
    world.run(secs(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 2 * before);
}

/// Initiations and responses of peers with every cause for a handshake: unanswered data, an old
/// session, a busy sender.
#[test]
fn initiations_are_never_closer_than_the_rekey_timeout() {
    for seed in 0..6 {
        let mut world = World::connected(seed);
        for round in 0..400u64 {
            let cut = round % 100 > 40;
            world.gate(move |_| !cut);
            world.send(A, B);
            if round % 7 == 0 {
                world.send(B, A);
            }
            world.run(millis(1100 + 10 * (round % 13)));
        }
        for host in [A, B] {
            for gap in gaps(&world.times(host, What::Initiation)) {
                assert!(gap >= REKEY_TIMEOUT, "{gap:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn initiation_soon_after_a_response_is_delayed() {
    let mut world = World::pair(5);
    world.gate(|sent| !matches!(sent.what, What::Data | What::Keepalive));
    world.send(A, B);
    world.run(millis(100));
    let response = world.times(B, What::Response)[0];
    world.send(B, A);
    world.run(secs(6));
    let initiation = world.times(B, What::Initiation)[0];
    let gap = initiation - response;
    assert!((REKEY_TIMEOUT..=REKEY_TIMEOUT + REKEY_TIMEOUT_JITTER).contains(&gap), "{gap:?}");
}

#[test]
fn without_an_endpoint_packets_are_dropped_and_no_initiation_is_sent() {
    let mut world = World::new(6);
    world.add_host();
    world.add_host();
    let change = world.peer_change(B);
    world.change_peer(A, change);
    world.send(A, B);
    world.run(secs(30));
    assert!(world.wire.is_empty());
    assert_eq!(world.hosts[A].dropped(DropReason::OutNoEndpoint), 1);
    assert_eq!(world.hosts[A].wakeups, 0);
}

#[test]
fn without_a_private_key_no_initiation_is_sent_and_received_ones_are_counted() {
    let mut world = World::pair(7);
    world.apply(A, DeviceChange { private_key: Some(None), ..Default::default() });
    world.send(A, B);
    world.send(B, A);
    world.run(secs(30));
    assert!(world.sent(A, What::Initiation).is_empty());
    assert!(world.hosts[A].dropped(DropReason::HandshakeNoKey) >= 5);
    assert!(world.hosts[A].wakeups < 10, "{} wake-ups", world.hosts[A].wakeups);
}
