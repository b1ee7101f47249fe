//! The life of a path: proven, loaded, cut, moved, idle, restarted.

use std::{net::SocketAddr, time::Duration};

use ipc::Path;
use mesh::peer_paths::Event;
use sim::{Link, Nat, Realm, Timeouts};

use crate::stock::Node;
use crate::world::{INNER, MS, Plan, SECOND, World, node, outer};

const CUT: Link = Link { loss: 10_000, ..Link::CLEAN };

/// Returns two hosts that exchange data over a direct path.
fn talking(seed: u64, boxes: [Nat; 2]) -> World {
    let mut world = World::new(Plan::new(seed), boxes);
    world.hosts[0].talks = true;
    assert!(world.run(world.began + 2 * SECOND, World::both_direct));
    world
}

fn relayed(world: &World) -> bool {
    world.hosts.iter().all(|host| matches!(host.used, Some(Path::Relay(_))))
}

#[test]
fn relay_is_used_at_once_and_data_never_waits() {
    for seed in 0..50 {
        let mut world = World::new(Plan::new(seed), [Nat::SYMMETRIC; 2]);
        for (at, host) in world.hosts.iter().enumerate() {
            assert_eq!(host.used, Some(Path::Relay(2 - at as u16)));
        }
        world.hosts[0].talks = true;
        let arrives = world.plan.relay[1] + MS;
        assert!(world.run(world.began + arrives, |world| world.hosts[1].count == 1));
    }
}

#[test]
fn lost_pings_do_not_end_a_path_that_carries_data() {
    for seed in 0..50 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED; 2]);
        world.loses_disco = true;
        let told = world.hosts.each_ref().map(|host| host.told.len());
        world.run_for(120 * SECOND);
        assert!(world.both_direct());
        assert_eq!(told, world.hosts.each_ref().map(|host| host.told.len()));
    }
}

#[test]
fn path_survives_a_loss_of_one_third() {
    for seed in 0..50 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED; 2]);
        world.network.set_link(Link { loss: 3_333, ..world.plan.link });
        world.run_for(120 * SECOND);
        let told = world.hosts.iter().map(|host| host.told.len()).max().unwrap();
        assert!(told <= 3, "{told} changes");
    }
}

/// The agent may take this long to read a large map on a busy machine.
#[test]
fn path_survives_a_stall_and_a_cut_during_it_is_detected_afterwards() {
    for seed in 0..50 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED; 2]);
        world.network.set_link(CUT);
        let (stall, now) = (20 * SECOND, world.network.now());
        let paths = &mut world.hosts[0].paths;
        paths.handle_stall(stall, now + stall);
        let is_left_at = |paths: &mut dyn Node, now| {
            paths.handle_timeout(now);
            let events: Vec<Event> = std::iter::from_fn(|| paths.poll_event()).collect();
            events.iter().any(|event| matches!(event, Event::UsePath { .. }))
        };
        assert!(!is_left_at(&mut **paths, now + stall));
        assert!(is_left_at(&mut **paths, now + stall + 7 * SECOND));
    }
}

#[test]
fn one_way_traffic_retains_its_path_until_it_is_cut() {
    for seed in 0..50 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED; 2]);
        world.hosts[1].answers = false;
        let told = world.hosts[0].told.len();
        let began = world.network.now();
        world.run_for(120 * SECOND);
        assert!(world.hosts[0].is_direct() && world.hosts[0].told.len() == told);
        let pings = world.hosts[0].spent[0];
        assert!(pings < 300, "{pings} pings in {:?}", world.network.now() - began);
        world.network.set_link(CUT);
        let cut = world.network.now();
        assert!(world.run(cut + 3 * SECOND, |world| !world.hosts[0].is_direct()));
    }
}

#[test]
fn silently_cut_path_is_left_within_three_seconds_and_found_again() {
    for seed in 0..200 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED, Nat::NO_INPUT_DROP]);
        world.hosts[1].talks = true;
        let later = MS * (seed as u32 * 37 % 5_000);
        world.run_for(later);
        world.network.set_link(CUT);
        let cut = world.network.now();
        assert!(world.run(cut + 3 * SECOND, relayed), "seed {seed}");
        let count = world.hosts.each_ref().map(|host| host.count);
        world.run_for(20 * SECOND);
        for (host, before) in world.hosts.iter().zip(count) {
            assert!(host.count > before + 150, "data does not go by the relay");
        }
        world.network.set_link(world.plan.link);
        let back = world.network.now();
        assert!(world.run(back + 5 * SECOND, World::both_direct), "seed {seed}");
    }
}

#[test]
fn path_after_a_long_cut_is_found_within_a_round() {
    for seed in 0..20 {
        let mut world = talking(seed, [Nat::NO_INPUT_DROP; 2]);
        world.network.set_link(CUT);
        world.run_for(600 * SECOND);
        world.network.set_link(world.plan.link);
        let back = world.network.now();
        assert!(world.run(back + 70 * SECOND, World::both_direct), "seed {seed}");
    }
}

#[test]
fn moved_host_is_found_again_and_data_continues() {
    for seed in 0..40 {
        for other in [Nat::PORT_RESTRICTED, Nat::NO_INPUT_DROP, Nat::SYMMETRIC] {
            let mut world = talking(seed, [Nat::ADDRESS_RESTRICTED, other]);
            move_host(&mut world, Nat::ADDRESS_RESTRICTED);
            let silence = longest_silence(&mut world);
            assert!(silence < SECOND, "seed {seed}: no data in {silence:?}");
            assert!(world.both_direct());
        }
    }
}

/// Packets that a host sends before it notices that it moved leave an entry in the peer's NAT.
#[test]
fn nat_without_input_drop_is_passed_a_minute_after_a_move() {
    for seed in 0..100 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED, Nat::NO_INPUT_DROP]);
        move_host(&mut world, Nat::PORT_RESTRICTED);
        let moved = world.network.now();
        world.run_for(3 * SECOND);
        assert!(!world.hosts[0].is_direct());
        assert!(world.run(moved + 70 * SECOND, World::both_direct), "seed {seed}");
        assert_eq!(world.hosts[1].used, Some(Path::Direct(elsewhere())));
    }
}

fn elsewhere() -> SocketAddr {
    SocketAddr::new(outer(7), 51820)
}

/// The first host moves behind another NAT.
fn move_host(world: &mut World, nat: Nat) {
    world.run_for(10 * SECOND);
    let realm = world.network.add_nat(Realm::INTERNET, nat, &[elsewhere().ip()]);
    let socket = world.network.bind(realm, INNER.parse().unwrap());
    world.hosts[0].sockets = vec![socket];
    world.hosts[0].paths.handle_network_change(world.network.now());
}

/// Returns the longest time within half a minute in which a host receives no data.
fn longest_silence(world: &mut World) -> Duration {
    let mut longest = Duration::ZERO;
    let end = world.network.now() + 30 * SECOND;
    while world.network.now() < end {
        world.run_for(50 * MS);
        for host in &world.hosts {
            longest = longest.max(world.network.now() - host.data.unwrap());
        }
    }
    longest
}

#[test]
fn mapping_lives_while_data_flows_and_is_recreated_after_a_pause() {
    let nat = Nat { timeouts: Timeouts::outbound(20 * SECOND), ..Nat::PORT_RESTRICTED };
    for seed in 0..50 {
        let mut world = talking(seed, [nat; 2]);
        let told = world.hosts.each_ref().map(|host| host.told.len());
        // A datagram every 40 s: pings keep the mapping alive.
        world.plan.pace = 40 * SECOND;
        world.run_for(400 * SECOND);
        assert_eq!(told, world.hosts.each_ref().map(|host| host.told.len()), "seed {seed}");
        world.hosts[0].talks = false;
        world.run_for(100 * SECOND);
        assert!(relayed(&world));
        (world.hosts[0].talks, world.plan.pace) = (true, 100 * MS);
        let again = world.network.now();
        assert!(world.run(again + 2 * SECOND, World::both_direct), "seed {seed}");
    }
}

#[test]
fn idle_host_sets_no_timer_and_sends_nothing() {
    for seed in 0..20 {
        let mut world = talking(seed, [Nat::PORT_RESTRICTED, Nat::FULL_CONE]);
        world.hosts[0].talks = false;
        world.run_for(60 * SECOND);
        let spent = world.hosts.each_ref().map(|host| host.spent);
        for host in &world.hosts {
            assert_eq!(host.paths.poll_timeout(), None);
        }
        world.run_for(3_600 * SECOND);
        assert_eq!(spent, world.hosts.each_ref().map(|host| host.spent));
    }
}

#[test]
fn both_hosts_restart_and_get_a_direct_path_again() {
    for seed in 0..50 {
        for boxes in [[Nat::PORT_RESTRICTED; 2], [Nat::NO_INPUT_DROP; 2]] {
            let mut world = talking(seed, boxes);
            world.restart(0);
            world.run_for(MS * (seed as u32 * 13));
            world.restart(1);
            let again = world.network.now();
            assert!(world.run(again + 2 * SECOND, World::both_direct), "seed {seed}");
        }
    }
}

#[test]
fn restarted_peer_gets_a_handshake_at_once() {
    let mut world = talking(1, [Nat::PORT_RESTRICTED; 2]);
    world.hosts[0].events.clear();
    world.restart(1);
    world.run_for(MS);
    let relay = Event::UsePath { peer: node(1), path: Some(Path::Relay(2)) };
    assert_eq!(world.hosts[0].events[..2], [relay, Event::HandshakeNow(node(1))]);
    let again = world.network.now();
    assert!(world.run(again + 2 * SECOND, World::both_direct));
}

#[test]
fn known_endpoint_is_sufficient_without_a_relay() {
    let mut world = World::new(Plan::new(1), [Nat::PORT_RESTRICTED, Nat::FULL_CONE]);
    world.relay_works = false;
    world.plan.map_is_whole = true;
    (0..2).for_each(|at| world.introduce(at));
    world.hosts[0].talks = true;
    // After the last call, because nothing shows that the relay does not forward.
    assert!(world.run(world.began + 12 * SECOND, |world| world.hosts[0].is_direct()));
}
