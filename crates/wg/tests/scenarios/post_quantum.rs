//! The exchange of a post-quantum secret between two hosts, and the traffic before it.

use std::{cell::RefCell, rc::Rc, time::Duration};

use wg::{
    DropReason, PostQuantum, PresharedKey,
    config::{DeviceChange, PeerChange},
    message::DATA_OVERHEAD,
};

use crate::support::*;

const BOTH_ON: [PostQuantum; 2] = [PostQuantum::On; 2];
const BOTH_REQUIRE: [PostQuantum; 2] = [PostQuantum::Require; 2];
/// Length of a data datagram in these tests. No message of the exchange has it.
const DATA: usize = 32 + DATA_OVERHEAD;
/// Length of a request, and of all other messages without a body.
const SHORT: usize = 16 + DATA_OVERHEAD;

fn pair(seed: u64, modes: [PostQuantum; 2]) -> World {
    let mut world = World::pair(seed);
    for (host, mode) in [A, B].into_iter().zip(modes) {
        set(&mut world, host, mode);
    }
    world
}

fn set(world: &mut World, host: Id, mode: PostQuantum) {
    world.act(host, |host, _| host.control.set_post_quantum(mode));
}

/// A pair that has agreed on a secret.
fn agreed(seed: u64, modes: [PostQuantum; 2]) -> World {
    let mut world = pair(seed, modes);
    world.send(A, B);
    world.run(secs(3));
    assert!(since(&world).iter().all(Option::is_some), "seed {seed}: {:?}", since(&world));
    world
}

/// Time when each side agreed on the secret of its session.
fn since(world: &World) -> [Option<Duration>; 2] {
    [(A, B), (B, A)].map(|(host, peer)| world.hosts[host].state(&world.key(peer)).post_quantum)
}

fn data_sent(world: &World, from: usize) -> usize {
    world.wire[from..].iter().filter(|sent| sent.bytes.len() == DATA).count()
}

/// Number of keys that a host sent.
fn keys_sent(world: &World, host: Id) -> usize {
    let last = 384 + 16 + DATA_OVERHEAD;
    world.sent(host, What::Data).iter().filter(|sent| sent.bytes.len() == last).count()
}

/// Replaces a host by a new process with the same key and no other state.
fn restart(world: &mut World, host: Id, mode: PostQuantum) {
    let (key, seed) = (world.hosts[host].key.clone(), 1_000 + world.wire.len() as u64);
    let mut other = Host::new(host, seed);
    let private_key = Some(Some(key.clone()));
    other.control.apply(DeviceChange { private_key, ..Default::default() }).unwrap();
    other.control.set_post_quantum(mode);
    other.key = key;
    world.hosts[host] = other;
    world.introduce(host, 1 - host);
}

#[test]
fn hosts_agree_after_the_first_data_and_delay_no_packet() {
    for seed in 0..6 {
        let mut world = pair(seed, BOTH_ON);
        let mut sent = Vec::new();
        for _ in 0..300 {
            sent.push(world.send(A, B));
            world.run(millis(10));
        }
        assert_eq!(world.received(B), sent, "all of it, in order");
        let [one, other] = since(&world);
        assert!(one.is_some() && other.is_some(), "{one:?} {other:?}");
        world.assert_flows(A, B);
        assert_eq!([A, B].map(|host| keys_sent(&world, host)).iter().sum::<usize>(), 1);
    }
}

#[test]
fn keepalives_and_handshakes_alone_start_no_exchange() {
    let mut world = pair(1, BOTH_ON);
    let change = PeerChange { persistent_keepalive: Some(20), ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    world.run(secs(600));
    assert!(world.sent(A, What::Initiation).len() > 3);
    assert_eq!([A, B].map(|host| world.sent(host, What::Data).len()), [0, 0]);
}

#[test]
fn peer_without_an_answer_gets_three_requests_only() {
    for seed in 0..4 {
        let mut world = pair(seed, [PostQuantum::On, PostQuantum::Off]);
        for _ in 0..3_600 {
            world.send(A, B);
            world.send(B, A);
            world.run(secs(1));
        }
        let requests =
            world.sent(A, What::Data).iter().filter(|it| it.bytes.len() == SHORT).count();
        assert_eq!(requests, 3);
        let all = world.sent(A, What::Data).len() + world.sent(B, What::Data).len();
        assert_eq!(all, 7_203, "and nothing else is sent");
        assert_eq!(since(&world), [None, None]);
        world.assert_flows(A, B);
    }
}

#[test]
fn peer_that_enables_the_exchange_later_starts_it() {
    let mut world = pair(1, [PostQuantum::On, PostQuantum::Off]);
    world.send(A, B);
    world.run(secs(60));
    restart(&mut world, B, PostQuantum::On);
    world.send(B, A);
    world.run(secs(4));
    world.assert_flows(A, B);
    assert!(since(&world).iter().all(Option::is_some));
}

#[test]
fn require_delays_data_until_the_secret_and_loses_none() {
    for seed in 0..6 {
        let mut world = pair(seed, BOTH_REQUIRE);
        let sent = world.send_many(A, B, 5);
        world.run(secs(2));
        assert_eq!(world.received(B), sent);
        let handshakes: Vec<_> =
            (0..world.wire.len()).filter(|at| world.wire[*at].what == What::Response).collect();
        assert_eq!(handshakes.len(), 2, "one without the secret, one with it");
        let (before, after) = world.wire.split_at(handshakes[1]);
        assert!(before.iter().all(|sent| sent.bytes.len() != DATA), "seed {seed}");
        assert_eq!(after.iter().filter(|sent| sent.bytes.len() == DATA).count(), 5);
        let waited = world.wire[handshakes[1]].at.since(world.wire[0].at);
        assert!(waited < millis(150), "three round trips and a handshake: {waited:?}");
        world.assert_flows(A, B);
    }
}

#[test]
fn require_sends_no_data_to_a_peer_without_support() {
    for seed in 0..4 {
        let mut world = pair(seed, [PostQuantum::Require, PostQuantum::Off]);
        for _ in 0..1_000 {
            world.send(A, B);
            world.run(millis(500));
        }
        assert_eq!((data_sent(&world, 0), world.received(B).len()), (0, 0));
        assert!(world.hosts[A].dropped(DropReason::OutNotPostQuantum) > 0);
        let requests = world.sent(A, What::Data).len();
        let sessions = world.sent(A, What::Keepalive).len();
        assert!(
            requests >= 3 && requests <= 3 * sessions,
            "{requests} requests in {sessions} sessions"
        );
        world.send(B, A);
        world.run(secs(1));
        assert!(world.received(A).is_empty());
        assert_eq!(world.hosts[A].dropped(DropReason::InNotPostQuantum), 1);

        set(&mut world, A, PostQuantum::On);
        world.send(A, B);
        world.run(secs(10));
        world.assert_flows(A, B);
    }
}

#[test]
fn hosts_with_require_and_on_can_communicate() {
    for (seed, modes) in [
        (1, [PostQuantum::Require, PostQuantum::On]),
        (2, [PostQuantum::On, PostQuantum::Require]),
        (3, [PostQuantum::Require, PostQuantum::On]),
        (4, [PostQuantum::On, PostQuantum::Require]),
    ] {
        let mut world = agreed(seed, modes);
        world.assert_flows(A, B);
    }
}

#[test]
fn hosts_that_start_simultaneously_agree_on_one_secret() {
    for (seed, modes) in (0..20).zip([BOTH_ON, BOTH_REQUIRE].into_iter().cycle()) {
        let mut world = pair(seed, modes);
        world.send(A, B);
        world.send(B, A);
        world.run(secs(3));
        let [one, other] = since(&world);
        assert!(one.is_some() && other.is_some(), "seed {seed}: {one:?} {other:?}");
        world.assert_flows(A, B);
    }
}

#[test]
fn bad_link_only_delays_the_agreement() {
    let bad = Link { jitter: millis(80), loss: 3_000, duplication: 2_000, ..LINK };
    for (seed, modes) in (0..20).zip([BOTH_ON, BOTH_REQUIRE].into_iter().cycle()) {
        let mut world = pair(seed, modes);
        world.network.set_link(bad);
        let mut took = None;
        for second in 0..120 {
            world.send(A, B);
            world.send(B, A);
            world.run(secs(1));
            if since(&world).iter().all(Option::is_some) {
                took.get_or_insert(second);
            }
        }
        world.network.set_link(LINK);
        world.run(secs(6));
        world.assert_flows(A, B);
        assert!(took.is_some(), "seed {seed}: {:?}", since(&world));
    }
}

#[test]
fn require_repeats_an_exchange_that_a_bad_link_prevented() {
    let mut world = pair(1, BOTH_REQUIRE);
    // Handshakes and requests pass, and keys and ciphertexts are lost.
    world.gate(|sent| sent.bytes.len() < 300);
    world.send(A, B);
    world.run(secs(41));
    assert_eq!(since(&world), [None, None]);
    world.open_gate();
    world.run(secs(6));
    assert!(since(&world).iter().all(Option::is_some), "{:?}", since(&world));
    world.assert_flows(A, B);
}

#[test]
fn loss_of_any_single_datagram_does_not_prevent_the_agreement() {
    for seed in [1, 2] {
        for lost in 0..24 {
            for modes in [BOTH_ON, BOTH_REQUIRE] {
                let mut world = pair(seed, modes);
                let mut passed = 0;
                world.gate(move |_| {
                    passed += 1;
                    passed - 1 != lost
                });
                world.send(A, B);
                world.run(secs(13));
                world.open_gate();
                world.assert_flows(A, B);
                assert!(since(&world).iter().all(Option::is_some), "datagram {lost}, seed {seed}");
            }
        }
    }
}

#[test]
fn restarted_side_communicates_again_within_round_trips() {
    let modes = [BOTH_ON, BOTH_REQUIRE].into_iter().cycle();
    for (seed, modes) in (0..6).zip(modes) {
        for (host, delay) in [(A, LINK.delay), (B, LINK.delay), (A, millis(50)), (B, millis(50))] {
            let mut world = agreed(seed, modes);
            world.network.set_link(Link { delay, ..LINK });
            restart(&mut world, host, modes[host]);
            let from = world.wire.len();
            let sent = world.send_many(host, 1 - host, 3);
            // With `require` they first agree on a new secret.
            world.run(if modes == BOTH_ON { millis(50) + 6 * delay } else { secs(1) });
            assert!(world.received(1 - host).ends_with(&sent), "seed {seed}, host {host}");
            if modes == BOTH_REQUIRE {
                let last = world.wire.iter().rposition(|sent| sent.what == What::Response);
                assert_eq!(data_sent(&world, from), data_sent(&world, last.unwrap()));
            }
            world.run(secs(2));
            assert!(since(&world).iter().all(Option::is_some), "seed {seed}, host {host}");
            world.assert_flows(A, B);
        }
    }
}

/// An attacker that sees an initiation and can inject packets, but cannot delay the true response.
#[test]
fn forged_response_does_not_cause_a_session_without_the_secret() {
    for (seed, host) in [(1, A), (2, B)] {
        let mut world = agreed(seed, BOTH_ON);
        world.network.set_link(Link { delay: millis(50), ..LINK });
        let from = world.wire.len();
        for step in 0..20_000 {
            if step % 50 == 0 {
                world.send(host, 1 - host);
            }
            world.run(millis(20));
            for sent in world.wire.split_off(from) {
                if sent.what == What::Initiation {
                    let initiator = if sent.from == world.hosts[A].address { A } else { B };
                    let index = &sent.bytes[4..8];
                    let parts = [&[2, 0, 0, 0, 9, 9, 9, 9], index, &[9; 48]].concat();
                    let forged = with_macs(parts, world.key(initiator).as_bytes());
                    world.inject(&forged, sent.to, initiator);
                }
            }
            assert!(since(&world).iter().all(Option::is_some), "seed {seed}, {step} times 20 ms");
        }
        let forged = [A, B].map(|it| world.hosts[it].dropped(DropReason::HandshakeForged));
        assert!(forged.iter().sum::<u64>() >= 3, "{forged:?}");
        world.network.set_link(LINK);
        world.assert_flows(A, B);
    }
}

#[test]
fn response_with_a_secret_lost_by_a_restart_is_not_counted_as_forged() {
    for (seed, modes) in (0..6).zip([BOTH_ON, BOTH_REQUIRE].into_iter().cycle()) {
        for host in [A, B] {
            let mut world = agreed(seed, modes);
            restart(&mut world, host, modes[host]);
            world.send(host, 1 - host);
            world.run(secs(2));
            world.assert_flows(A, B);
            let dropped = |reason| [A, B].map(|it| world.hosts[it].dropped(reason));
            let mut lost = [0, 0];
            lost[host] = 1;
            assert_eq!(dropped(DropReason::HandshakeLostSecret), lost, "seed {seed}");
            assert_eq!(dropped(DropReason::HandshakeForged), [0, 0], "seed {seed}");
        }
    }
}

#[test]
fn responses_with_another_preshared_key_are_counted_as_forged() {
    let mut world = pair(1, BOTH_ON);
    let other = PresharedKey::from_bytes(&[7; 32]);
    let change = PeerChange { preshared_key: Some(other), ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    world.send(A, B);
    world.run(secs(200));
    let responses = world.sent(B, What::Response).len() as u64;
    assert!(responses > 3, "{responses}");
    let dropped = |reason| world.hosts[A].dropped(reason);
    assert_eq!(dropped(DropReason::HandshakeLostSecret), 0);
    // The last response is not counted until another one follows.
    let forged = dropped(DropReason::HandshakeForged);
    assert!(forged == responses || forged == responses - 1, "{forged} of {responses}");
}

#[test]
fn restarted_side_that_only_receives_recovers() {
    for (seed, modes) in (0..4).zip([BOTH_ON, BOTH_REQUIRE].into_iter().cycle()) {
        for host in [A, B] {
            let mut world = agreed(seed, modes);
            restart(&mut world, host, modes[host]);
            for _ in 0..30 {
                world.send(1 - host, host);
                world.run(secs(1));
            }
            world.assert_flows(A, B);
            assert!(since(&world).iter().all(Option::is_some), "seed {seed}, host {host}");
        }
    }
}

#[test]
fn peer_replaced_by_a_standard_wireguard_can_communicate() {
    for seed in 0..4 {
        for host in [A, B] {
            let mut world = agreed(seed, BOTH_ON);
            restart(&mut world, host, PostQuantum::Off);
            world.send(host, 1 - host);
            world.run(secs(16));
            world.assert_flows(A, B);
            assert_eq!(since(&world), [None, None]);
            // From the next handshake on, no secret is tried.
            world.run(secs(200));
            world.send(host, 1 - host);
            world.run(millis(100));
            world.assert_flows(A, B);
        }
    }
}

#[test]
fn secret_is_replaced_each_hour_and_every_session_has_one() {
    for (seed, modes) in (0..4).zip([BOTH_ON, BOTH_REQUIRE].into_iter().cycle()) {
        let mut world = agreed(seed, modes);
        let mut renewed = vec![since(&world)[0]];
        for _ in 0..4 * 3600 / 5 {
            let (there, back) = (world.send(A, B), world.send(B, A));
            world.run(secs(5));
            assert_eq!(
                (world.received(B).last(), world.received(A).last()),
                (Some(&there), Some(&back))
            );
            assert!(since(&world).iter().all(Option::is_some));
            if renewed.last() != Some(&since(&world)[0]) {
                renewed.push(since(&world)[0]);
            }
        }
        assert!((4..=5).contains(&renewed.len()), "{renewed:?}");
        assert_eq!(keys_sent(&world, A) + keys_sent(&world, B), renewed.len());
    }
}

#[test]
fn stepping_wall_clocks_do_not_affect_the_secret() {
    let mut world = agreed(1, BOTH_ON);
    for skew in [7_200, -90_000, 400_000, 0] {
        world.clock_skew[B] = skew;
        for _ in 0..30 {
            world.send(A, B);
            world.run(secs(10));
        }
        world.assert_flows(A, B);
    }
    assert_eq!(keys_sent(&world, A) + keys_sent(&world, B), 1);
}

#[test]
fn pair_idle_for_hours_starts_with_its_old_secret() {
    let mut world = agreed(1, BOTH_REQUIRE);
    world.run(secs(5 * 3600));
    let from = world.wire.len();
    let sent = world.send(A, B);
    world.run(millis(100));
    assert_eq!(world.received(B).last(), Some(&sent), "one handshake");
    world.run(secs(3));
    assert_eq!(keys_sent(&world, A) + keys_sent(&world, B), 2, "and the old one is replaced");
    assert!(world.wire.len() - from < 20);
}

#[test]
fn configured_preshared_keys_must_match_with_a_secret_too() {
    let mut world = pair(1, BOTH_ON);
    let give = |world: &mut World, host: Id, key: &[u8; 32]| {
        let preshared_key = Some(PresharedKey::from_bytes(key));
        let change = PeerChange { preshared_key, ..PeerChange::new(world.key(1 - host)) };
        world.change_peer(host, change);
    };
    give(&mut world, A, &[7; 32]);
    give(&mut world, B, &[7; 32]);
    world.send(A, B);
    world.run(secs(3));
    assert!(since(&world).iter().all(Option::is_some));

    give(&mut world, A, &[8; 32]);
    world.run(secs(200));
    let before = world.received(B).len();
    world.send(A, B);
    world.run(secs(60));
    assert_eq!(world.received(B).len(), before, "different keys do not communicate");
    give(&mut world, B, &[8; 32]);
    world.run(secs(20));
    world.assert_flows(A, B);
}

#[test]
fn interface_down_or_disabled_exchange_drops_the_secret() {
    let mut world = agreed(1, BOTH_ON);
    world.act(A, |host, _| {
        host.control.down();
        host.control.up();
    });
    world.send(A, B);
    world.run(millis(200));
    world.assert_flows(A, B);
    world.run(secs(3));
    assert!(since(&world).iter().all(Option::is_some), "they agreed on a new secret");
    set(&mut world, A, PostQuantum::Off);
    world.send(A, B);
    world.run(secs(16));
    world.assert_flows(A, B);
    assert_eq!(since(&world), [None, None]);
}

/// After any losses and restarts, the pair recovers once the network is good.
#[test]
fn pair_recovers_after_random_losses_and_restarts() {
    for seed in 0..24 {
        let modes = if seed % 2 == 0 { BOTH_ON } else { BOTH_REQUIRE };
        let mut world = pair(seed, modes);
        let bad = Link { jitter: millis(300), loss: 2_500, duplication: 1_000, ..LINK };
        world.network.set_link(bad);
        for round in 0..400u64 {
            let dice = (round ^ seed << 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            if dice % 5 < 3 {
                world.send(A, B);
            }
            if dice % 7 < 3 {
                world.send(B, A);
            }
            if dice % 83 == 0 {
                let host = (dice / 83 % 2) as Id;
                restart(&mut world, host, modes[host]);
            }
            world.run(millis(dice % 1900));
        }
        world.network.set_link(LINK);
        for _ in 0..30 {
            world.send(A, B);
            world.send(B, A);
            world.run(secs(1));
        }
        world.assert_flows(A, B);
        assert!(since(&world).iter().all(Option::is_some), "seed {seed}: {:?}", since(&world));
    }
}

/// A response is late, and meanwhile the other side began a session and another one with the secret.
#[test]
fn late_response_to_an_old_initiation_loses_no_data() {
    for (seed, [early, later]) in (0..8).zip([[A, B], [B, A]].into_iter().cycle()) {
        let mut world = pair(seed, BOTH_ON);
        let withheld = Rc::new(RefCell::new(None));
        let (to_withhold, from) = (withheld.clone(), world.hosts[later].address);
        world.gate(move |sent| {
            let mut withheld = to_withhold.borrow_mut();
            let is_first = sent.what == What::Response && sent.from == from && withheld.is_none();
            if is_first {
                *withheld = Some(sent.clone());
            }
            !is_first
        });
        world.send(early, later);
        // The initiations cross.
        world.run(millis(5));
        world.send(later, early);
        world.run(secs(3));
        let response = withheld.borrow_mut().take().unwrap();
        world.inject(&response.bytes, response.from, early);
        world.run(millis(100));
        world.assert_flows(A, B);
    }
}
