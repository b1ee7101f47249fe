//! Timers that follow traffic: keepalives, persistent keepalives, and new handshakes for unanswered
//! data.

use std::time::Duration;

use wg::{
    DropReason,
    config::PeerChange,
    constants::{KEEPALIVE_TIMEOUT, REKEY_TIMEOUT, REKEY_TIMEOUT_JITTER},
};

use crate::support::*;

/// A pair. The first host has a persistent keepalive from the start.
fn pair_with_interval(seed: u64, interval: u16) -> World {
    let mut world = World::pair(seed);
    set_interval(&mut world, interval);
    world
}

fn set_interval(world: &mut World, interval: u16) {
    let change =
        PeerChange { persistent_keepalive: Some(interval), ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
}

fn gaps(times: &[Duration]) -> Vec<Duration> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn receiver_of_data_sends_a_keepalive_after_ten_silent_seconds() {
    let mut world = World::connected(1);
    let arrived = world.times(A, What::Data)[0] + LINK.delay;
    world.run(secs(30));
    assert_eq!(world.times(B, What::Keepalive), [arrived + KEEPALIVE_TIMEOUT]);
}

/// Known bug elsewhere: keepalives that answer each other.
#[test]
fn keepalives_are_not_answered_and_idle_peers_become_silent() {
    let mut world = World::connected(2);
    world.assert_flows(A, B);
    world.run(secs(15));
    let sent = world.wire.len();
    let woken = world.hosts[A].wakeups + world.hosts[B].wakeups;
    world.run(secs(300));
    assert_eq!(world.wire.len(), sent);
    assert!(world.hosts[A].wakeups + world.hosts[B].wakeups <= woken + 6, "no idle ticking");
}

#[test]
fn data_replaces_a_keepalive() {
    let mut world = World::connected(3);
    world.run(secs(5));
    world.send(B, A);
    world.run(secs(9));
    assert!(world.sent(B, What::Keepalive).is_empty());
    world.run(secs(20));
    assert!(world.sent(B, What::Keepalive).is_empty());
    assert_eq!(world.sent(A, What::Keepalive).len(), 1, "A had the last data");
}

#[test]
fn one_way_stream_is_answered_by_a_keepalive_every_ten_seconds() {
    let mut world = World::connected(4);
    for _ in 0..600 {
        world.send(A, B);
        world.run(millis(100));
    }
    let times = world.times(B, What::Keepalive);
    assert_eq!(times.len(), 5, "{times:?}");
    for gap in gaps(&times) {
        // Measured from the first packet after the keepalive.
        assert!((KEEPALIVE_TIMEOUT..=KEEPALIVE_TIMEOUT + millis(100)).contains(&gap), "{gap:?}");
    }
    assert_eq!(world.sent(A, What::Initiation).len(), 1, "each keepalive answers the earlier data");
}

#[test]
fn data_unanswered_for_15_seconds_starts_a_handshake_with_jitter() {
    let mut seen = Vec::new();
    for seed in 0..20 {
        let mut world = World::connected(seed);
        world.run(secs(30));
        world.gate(|_| false);
        let sent = world.elapsed();
        world.send(A, B);
        world.run(secs(3));
        world.send(A, B);
        world.run(secs(14));
        let started = world.times(A, What::Initiation)[1] - sent;
        let timeout = KEEPALIVE_TIMEOUT + REKEY_TIMEOUT;
        assert!((timeout..=timeout + REKEY_TIMEOUT_JITTER).contains(&started), "{started:?}");
        seen.push(started);
    }
    let spread = *seen.iter().max().unwrap() - *seen.iter().min().unwrap();
    assert!(spread > millis(100), "{spread:?}");
}

#[test]
fn unanswered_data_of_the_responder_starts_a_handshake() {
    let mut world = World::connected(5);
    world.run(secs(30));
    world.gate(|_| false);
    world.send(B, A);
    world.run(secs(16));
    assert_eq!(world.sent(B, What::Initiation).len(), 1);
}

#[test]
fn keepalive_answers_data_and_is_not_answered() {
    let mut world = World::connected(6);
    world.run(secs(60));
    assert_eq!(world.sent(B, What::Keepalive).len(), 1);
    for host in [A, B] {
        assert!(world.sent(host, What::Initiation).len() <= 1);
    }
}

#[test]
fn persistent_keepalive_starts_a_handshake_and_repeats_at_its_interval() {
    let mut world = pair_with_interval(7, 25);
    assert_eq!(world.times(A, What::Initiation), [Duration::ZERO], "at once");
    world.run(secs(110));
    let times = world.times(A, What::Keepalive);
    assert_eq!(times[0], 2 * LINK.delay, "the first confirms the session");
    assert_eq!(gaps(&times), [secs(25); 4]);
    assert!(world.sent(B, What::Keepalive).is_empty());
}

#[test]
fn persistent_keepalive_counts_from_the_last_packet_in_either_direction() {
    let mut world = pair_with_interval(8, 25);
    world.run(secs(10));
    world.send(A, B);
    world.run(secs(2));
    world.send(B, A);
    let sent = world.elapsed();
    let before = world.sent(A, What::Keepalive).len();
    world.run(secs(60));
    let times = world.times(A, What::Keepalive)[before..].to_vec();
    let arrived = sent + LINK.delay;
    let passive = arrived + KEEPALIVE_TIMEOUT;
    assert_eq!(times[..2], [passive, passive + secs(25)]);
}

#[test]
fn persistent_keepalive_renews_the_session_in_time_for_an_hour() {
    let mut world = pair_with_interval(9, 25);
    world.run(secs(3600));
    let initiations = world.times(A, What::Initiation);
    assert!((24..=30).contains(&initiations.len()), "{}", initiations.len());
    for gap in gaps(&world.times(A, What::Keepalive)) {
        assert!(gap <= secs(25), "{gap:?}");
    }
    assert!(world.sent(B, What::Initiation).is_empty());
}

#[test]
fn persistent_keepalive_can_be_enabled_changed_and_disabled() {
    let mut world = World::connected(10);
    world.run(secs(30));
    let on = world.elapsed();
    set_interval(&mut world, 20);
    let from_on = |world: &World| -> Vec<Duration> {
        let times = world.times(A, What::Keepalive);
        times.into_iter().filter(|time| *time >= on).map(|time| time - on).collect()
    };
    world.run(secs(21));
    assert_eq!(from_on(&world), [secs(0), secs(20)]);
    set_interval(&mut world, 5);
    world.run(secs(12));
    assert_eq!(from_on(&world)[2..], [secs(25), secs(30)]);
    set_interval(&mut world, 30);
    world.run(secs(40));
    assert_eq!(from_on(&world)[4..], [secs(60)]);
    set_interval(&mut world, 0);
    world.run(secs(100));
    assert_eq!(from_on(&world).len(), 5);
}

#[test]
fn persistent_keepalive_starts_when_the_endpoint_is_configured() {
    let mut world = World::new(11);
    world.add_host();
    world.add_host();
    world.introduce(B, A);
    let change = PeerChange { persistent_keepalive: Some(25), ..world.peer_change(B) };
    world.change_peer(A, change);
    world.run(secs(60));
    assert!(world.wire.is_empty());
    let endpoint = Some(world.hosts[B].address);
    let change = PeerChange { endpoint, ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    world.run(secs(1));
    assert_eq!(world.sent(A, What::Keepalive).len(), 1);
}

/// The interval is shorter than the time between two initiations, and no keepalive can be sent. The
/// host must not wake up again and again.
#[test]
fn unsendable_persistent_keepalive_causes_few_wakeups() {
    let mut world = World::pair(12);
    world.gate(|_| false);
    set_interval(&mut world, 1);
    world.run(secs(60));
    assert!((10..=12).contains(&world.sent(A, What::Initiation).len()));
    let woken = world.hosts[A].wakeups;
    assert!(woken < 200, "{woken} wake-ups in a minute");
}

#[test]
fn persistent_keepalive_without_a_private_key_causes_few_wakeups() {
    let mut world = pair_with_interval(13, 10);
    world.run(secs(5));
    let change = wg::config::DeviceChange { private_key: Some(None), ..Default::default() };
    world.apply(A, change);
    let woken = world.hosts[A].wakeups;
    world.run(secs(100));
    let woken = world.hosts[A].wakeups - woken;
    assert!(woken < 50, "{woken} wake-ups");
}

#[test]
fn unreachable_peer_with_a_persistent_keepalive_is_retried_for_an_hour() {
    let mut world = World::pair(14);
    world.gate(|_| false);
    set_interval(&mut world, 25);
    world.run(secs(3600));
    let times = world.times(A, What::Initiation);
    assert!(*times.last().unwrap() > secs(3550));
    for gap in gaps(&times) {
        assert!(gap <= secs(26), "{gap:?}");
    }
    world.open_gate();
    world.run(secs(30));
    assert!(!world.sent(A, What::Keepalive).is_empty());
}

#[test]
fn device_that_is_down_sends_nothing_and_does_not_wake_up() {
    let mut world = pair_with_interval(15, 10);
    world.run(secs(1));
    world.act(A, |host, _| host.control.down());
    let (sent, woken) = (world.wire.len(), world.hosts[A].wakeups);
    set_interval(&mut world, 5);
    world.run(secs(100));
    assert_eq!(world.wire.len(), sent);
    assert_eq!(world.hosts[A].wakeups, woken);
    world.send(B, A);
    world.run(secs(1));
    let from_a = world.hosts[A].address;
    assert!(world.wire[sent..].iter().all(|sent| sent.from != from_a), "nor does it answer");
}

#[test]
fn persistent_keepalive_restarts_when_the_device_comes_up() {
    let mut world = pair_with_interval(16, 10);
    world.run(secs(300));
    world.act(A, |host, _| host.control.down());
    world.run(secs(7));
    let up = world.elapsed();
    world.act(A, |host, _| host.control.up());
    assert_eq!(*world.times(A, What::Initiation).last().unwrap(), up, "at once");
    let before = world.sent(A, What::Keepalive).len();
    world.run(secs(25));
    let times = world.times(A, What::Keepalive)[before..].to_vec();
    assert_eq!(gaps(&times), [secs(10); 2]);
    world.assert_flows(A, B);
}

#[test]
fn old_timers_do_not_fire_after_the_device_went_down_and_up() {
    let mut world = World::connected(17);
    world.assert_flows(A, B);
    let last_data = world.send(A, B);
    world.run(secs(3));
    for host in [A, B] {
        world.act(host, |host, _| host.control.down());
        world.act(host, |host, _| host.control.up());
    }
    let (sent, woken) = (world.wire.len(), world.hosts[A].wakeups);
    world.run(secs(700));
    assert_eq!(world.wire.len(), sent, "neither a keepalive nor a handshake, after {last_data}");
    assert_eq!(world.hosts[A].wakeups, woken);
    world.assert_flows(B, A);
    world.run(secs(20));
    let keepalives = world.sent(A, What::Keepalive).len() + world.sent(B, What::Keepalive).len();
    assert!(keepalives >= 1, "timers of the new session fire");
}

#[test]
fn timers_work_in_a_session_after_the_device_went_down_and_up() {
    let mut world = World::connected(18);
    world.run(secs(1));
    world.act(A, |host, _| host.control.down());
    world.run(secs(400));
    world.act(A, |host, _| host.control.up());
    world.send(A, B);
    world.run(secs(1));
    world.gate(|_| false);
    world.send(A, B);
    let sent = world.elapsed();
    world.run(secs(16));
    let started = *world.times(A, What::Initiation).last().unwrap();
    assert!(started >= sent + secs(14) && started <= sent + secs(16), "{started:?} after {sent:?}");
}

#[test]
fn staged_packets_are_dropped_and_counted_when_the_device_goes_down() {
    let mut world = World::pair(19);
    world.gate(|_| false);
    world.send_many(A, B, 4);
    world.run(secs(1));
    world.act(A, |host, _| host.control.down());
    assert_eq!(world.hosts[A].dropped(DropReason::OutHandshakeFailed), 4);
    world.open_gate();
    world.act(A, |host, _| host.control.up());
    world.run(secs(20));
    assert!(world.received(B).is_empty());
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
}
