//! Pairs of birthday probing: one node with a varying port, and one behind a NAT that accepts only
//! packets from contacted ports.

use std::time::Duration;

use ipc::Path;
use mesh::peer_paths::Event;
use rand_chacha::rand_core::Rng;
use sim::Nat;

use crate::world::{MS, Plan, SECOND, World};

const PAIR: [Nat; 2] = [Nat::SYMMETRIC, Nat::PORT_RESTRICTED];

/// Returns the time until two nodes that know each other are connected, if one or both send.
fn time_to_meet(seed: u64, pair: [Nat; 2], within: Duration) -> (World, Option<Duration>) {
    let plan = Plan { birthday: true, ..Plan::new(seed) };
    let mut world = World::new(plan, pair);
    let age = SECOND * (world.rng.next_u32() % 40);
    world.run_for(age);
    let began = world.network.now();
    world.hosts[seed as usize % 2].talks = true;
    for at in 0..2 {
        world.hosts[at].answers = at != seed as usize % 2;
    }
    let met = world.run(began + within, World::both_direct);
    let took = world.network.now() - began;
    (world, met.then_some(took))
}

/// Returns the maximum number of probes in any second.
fn pace(calls: &[Duration]) -> usize {
    let until = |at: Duration| calls.partition_point(|call| *call < at + SECOND);
    calls.iter().enumerate().map(|(first, at)| until(*at) - first).max().unwrap_or(0)
}

#[test]
fn pair_with_one_varying_port_connects_within_15_seconds() {
    let mut times = Vec::new();
    for seed in 0..60 {
        for pair in [PAIR, [PAIR[1], PAIR[0]], [Nat::SYMMETRIC, Nat::NO_INPUT_DROP]] {
            let (world, took) = time_to_meet(seed, pair, 20 * SECOND);
            times.push(took.unwrap_or_else(|| panic!("relayed, seed {seed}: {pair:?}")));
            for host in &world.hosts {
                assert!(host.calls.len() <= 2_400 && pace(&host.calls) <= 205);
                let open = host.auxiliary.len();
                assert!(open <= 1, "{open} are open, seed {seed}");
            }
        }
    }
    times.sort();
    let [p50, p95] = [50, 95].map(|part| times[times.len() * part / 100]);
    println!("birthday probing: p50 {p50:?}, p95 {p95:?}, worst {:?}", times.last());
    assert!(p50 <= 7 * SECOND && p95 <= 12 * SECOND, "p50 {p50:?}, p95 {p95:?}");
}

#[test]
fn found_path_stays_while_data_flows_and_for_a_while_after() {
    for seed in 0..6 {
        let (mut world, took) = time_to_meet(seed, PAIR, 20 * SECOND);
        assert!(took.is_some());
        let talks = seed as usize % 2;
        world.run_for(120 * SECOND);
        assert!(world.both_direct(), "seed {seed}");
        let told: Vec<_> = world.hosts.iter().map(|host| host.told.len()).collect();
        world.hosts[talks].talks = false;
        world.run_for(200 * SECOND);
        world.hosts[talks].talks = true;
        let again = world.network.now() + 2 * SECOND;
        assert!(world.run(again, World::both_direct), "seed {seed}");
        let opened = |event: &&Event| matches!(event, Event::OpenSockets(_));
        let opened = world.hosts[0].events.iter().filter(opened).count();
        assert_eq!(opened, 1, "seed {seed}: {told:?}");
        world.hosts[talks].talks = false;
        world.run_for(600 * SECOND);
        assert!(world.hosts[0].auxiliary.is_empty(), "it is closed");
        assert_eq!(world.hosts[0].paths.poll_timeout(), None);
    }
}

#[test]
fn dead_probed_path_is_replaced_by_the_relay_and_its_socket_closed() {
    for seed in 0..6 {
        let (mut world, took) = time_to_meet(seed, PAIR, 20 * SECOND);
        assert!(took.is_some());
        world.hosts.iter_mut().for_each(|host| host.talks = true);
        // No packets arrive any more, so that no other path can be found.
        let dead = sim::Link { loss: 10_000, ..world.plan.link };
        world.network.set_link(dead);
        world.run_for(10 * SECOND);
        assert!(matches!(world.hosts[0].used, Some(Path::Relay(_))), "{:?}", world.hosts[0].told);
        assert!(matches!(world.hosts[1].used, Some(Path::Relay(_))), "{:?}", world.hosts[1].told);
        assert!(world.hosts[0].auxiliary.is_empty(), "seed {seed}");
        world.network.set_link(world.plan.link);
        let end = world.network.now() + 90 * SECOND;
        assert!(world.run(end, World::both_direct), "it is met again, seed {seed}");
    }
}

#[test]
fn unsuitable_pair_rarely_probes() {
    for seed in 0..4 {
        for pair in [[Nat::SYMMETRIC; 2], [Nat::SYMMETRIC, Nat::UDP_BLOCKED]] {
            let plan = Plan { birthday: true, pace: SECOND / 2, ..Plan::new(seed) };
            let mut world = World::new(plan, pair);
            world.hosts[0].talks = true;
            world.run_for(900 * SECOND);
            for host in &world.hosts {
                let opens = |event: &&Event| matches!(event, Event::OpenSockets(_));
                assert!(host.events.iter().filter(opens).count() <= 4, "{pair:?}");
                assert!(host.auxiliary.is_empty(), "{pair:?}");
                assert!(host.calls.len() <= 4 * 2_400 && pace(&host.calls) <= 205, "{pair:?}");
                assert!(!host.is_direct());
            }
        }
    }
}

#[test]
fn stock_peer_gets_a_request_and_no_sockets_are_opened() {
    for seed in 0..4 {
        let plan = Plan { birthday: true, stock: true, ..Plan::new(seed) };
        let mut world = World::new(plan, PAIR);
        world.hosts[0].talks = true;
        world.run_for(120 * SECOND);
        let opens = |event: &Event| matches!(event, Event::OpenSockets(_));
        assert!(!world.hosts[0].events.iter().any(opens));
        assert!(matches!(world.hosts[0].used, Some(Path::Relay(_))));
    }
}

#[test]
fn no_requests_are_sent_if_probing_is_disabled() {
    let mut world = World::new(Plan::new(1), PAIR);
    world.hosts[0].talks = true;
    world.run_for(60 * SECOND);
    assert!(world.hosts.iter().all(|host| host.calls.is_empty() && !host.is_direct()));
    assert!(world.run(world.network.now() + MS, |_| true));
}
