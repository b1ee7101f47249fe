//! Replays are refused: initiations by their timestamp, data by its counter.

use wg::{DropReason, constants::REPLAY_WINDOW};

use crate::support::*;

/// The wall clock at the world's start, in seconds.
const EPOCH: u64 = 1_800_000_000;

#[test]
fn replayed_initiation_is_refused_and_does_not_move_the_peer() {
    let mut world = World::connected(1);
    let initiation = world.sent(A, What::Initiation)[0].bytes.clone();
    world.run(secs(10));
    world.inject(&initiation, "203.0.113.9:9".parse().unwrap(), B);
    world.run(millis(10));
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeReplayed), 1);
    assert_eq!(world.sent(B, What::Response).len(), 1);
    let endpoint = world.hosts[B].state(&world.key(A)).endpoint;
    assert_eq!(endpoint, Some(world.hosts[A].address));
    world.assert_flows(A, B);
}

#[test]
fn initiation_without_a_newer_timestamp_is_refused() {
    let mut world = World::pair(2);
    let from = world.hosts[A].address;
    let forger = Stranger::with(&world.hosts[A].key);
    let to = world.key(B);
    let mut try_stamp = |seconds, nanos| {
        let before = world.sent(B, What::Response).len();
        let message = forger.initiation(&to, 5, stamp(seconds, nanos));
        world.inject(&message, from, B);
        world.run(secs(1));
        world.sent(B, What::Response).len() > before
    };
    assert!(try_stamp(EPOCH, 500));
    assert!(!try_stamp(EPOCH, 500));
    assert!(!try_stamp(EPOCH, 499));
    assert!(!try_stamp(EPOCH - 1, 999_999_999));
    assert!(!try_stamp(0, 0));
    assert!(try_stamp(EPOCH, 501));
    assert!(try_stamp(EPOCH + 1, 0));
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeReplayed), 4);
}

/// Known bug elsewhere: a clock that steps back.
#[test]
fn initiator_with_a_clock_stepping_back_is_answered() {
    let mut world = World::connected(3);
    for step in [-1, -3600, -86_400 * 365, 3600, -86_400 * 3650] {
        world.clock_skew[A] = step;
        world.run(secs(200));
        world.assert_flows(A, B);
    }
    assert_eq!(world.sent(A, What::Initiation).len(), 6);
    assert_eq!(world.sent(B, What::Response).len(), 6);
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeReplayed), 0);
}

/// Known bug elsewhere: a clock that steps back.
#[test]
fn clock_step_back_and_device_restart_do_not_block_handshakes() {
    let mut world = World::connected(4);
    world.clock_skew[A] = -1_000_000;
    world.act(A, |host, _| host.control.down());
    world.act(A, |host, _| host.control.up());
    world.assert_flows(A, B);
}

#[test]
fn flood_of_one_peers_initiations_gets_fifty_responses_a_second() {
    let mut world = World::pair(5);
    let from = world.hosts[A].address;
    let forger = Stranger::with(&world.hosts[A].key);
    let to = world.key(B);
    for number in 0..1000u32 {
        let message = forger.initiation(&to, number, stamp(EPOCH, number));
        world.inject(&message, from, B);
        world.run(millis(3));
    }
    let answered = world.sent(B, What::Response).len();
    assert!((140..=150).contains(&answered), "{answered} in three seconds");
    let refused = world.hosts[B].dropped(DropReason::HandshakeReplayed);
    assert_eq!(refused as usize, 1000 - answered);
}

#[test]
fn initiations_every_twenty_milliseconds_are_all_answered() {
    let mut world = World::pair(6);
    let from = world.hosts[A].address;
    let forger = Stranger::with(&world.hosts[A].key);
    let to = world.key(B);
    for number in 0..50u32 {
        world.inject(&forger.initiation(&to, number, stamp(EPOCH, number)), from, B);
        world.run(millis(20));
    }
    assert_eq!(world.sent(B, What::Response).len(), 50);
}

#[test]
fn flood_of_one_peers_initiations_does_not_affect_another_peer() {
    let mut world = World::pair(7);
    let c = world.add_host();
    world.introduce(B, c);
    world.introduce(c, B);
    let from = world.hosts[A].address;
    let forger = Stranger::with(&world.hosts[A].key);
    let to = world.key(B);
    let number = world.send(c, B);
    for number in 0..50 {
        world.inject(&forger.initiation(&to, number, stamp(EPOCH, number)), from, B);
        world.run(millis(1));
    }
    assert_eq!(world.received(B), [number]);
}

/// Delivers data of A's session with B by counter. Returns whether it was accepted.
struct Counters {
    world: World,
    session: wg::Reservation,
}

impl Counters {
    fn new(seed: u64) -> Self {
        let world = World::connected(seed);
        let session = world.hosts[A].last.clone().unwrap();
        Self { world, session }
    }

    fn deliver(&mut self, counter: u64) -> bool {
        let packet = inner_packet(inner(A).into(), inner(B).into(), 7);
        let from = self.world.hosts[A].address;
        let before = self.world.hosts[B].received.len();
        self.world.inject(&seal_one(&self.session, counter, &packet), from, B);
        self.world.run(millis(0));
        self.world.hosts[B].received.len() > before
    }
}

#[test]
fn duplicate_data_is_refused() {
    let mut counters = Counters::new(8);
    assert!(!counters.deliver(0), "a duplicate");
    for counter in [1, 2, 3, 50, 10, 11] {
        assert!(counters.deliver(counter));
        assert!(!counters.deliver(counter));
    }
    assert!(!counters.deliver(1));
    assert_eq!(counters.world.hosts[B].dropped(DropReason::InReplayed), 8);
}

/// Known bug elsewhere: a replay window of 1024.
#[test]
fn replay_window_is_large_and_its_edges_are_exact() {
    const { assert!(REPLAY_WINDOW > 8000) };
    let mut counters = Counters::new(9);
    let top = 50_000;
    assert!(counters.deliver(top));
    assert!(!counters.deliver(top - REPLAY_WINDOW));
    for inside in [top - REPLAY_WINDOW + 1, top - 1024, top - 1] {
        assert!(counters.deliver(inside));
        assert!(!counters.deliver(inside));
    }
    assert!(counters.deliver(top + 1), "the window moves by one");
    assert!(!counters.deliver(top - REPLAY_WINDOW + 1));
    assert!(counters.deliver(top - REPLAY_WINDOW + 2));
}

#[test]
fn full_window_in_reverse_order_is_received() {
    let mut counters = Counters::new(10);
    for counter in (1000..1000 + REPLAY_WINDOW).rev() {
        assert!(counters.deliver(counter), "{counter}");
    }
}
