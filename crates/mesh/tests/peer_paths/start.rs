//! Hosts that have just joined: one learns of the other first, relays are connected late,
//! everything is slow. Entries of early pings would still be in their NATs.

use std::time::Duration;

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::Nat;

use crate::{
    pairs::pairs,
    world::{MS, Plan, SECOND, Start, World},
};

/// The maximum time until both have a direct path, after each knows the other and is connected to
/// its relay.
const PROMISE: Duration = Duration::from_secs(3);

/// Returns that time; `seed` decides which host sends first, and when.
fn time_to_direct(plan: Plan, pair: [Nat; 2]) -> Option<Duration> {
    let mut world = World::new(plan, pair);
    let Start { knows, connects, stall, .. } = plan.start;
    let ready = world.began + [knows, connects].concat().into_iter().fold(stall, Duration::max);
    let who = 1 + world.rng.next_u32() % 3;
    for (at, host) in world.hosts.iter_mut().enumerate() {
        host.talks = who >> at & 1 == 1;
    }
    let direct = world.run(ready + 100 * SECOND, World::both_direct);
    direct.then(|| world.network.now().saturating_sub(ready))
}

fn assert_promise(what: &str, start: impl Fn(&mut dyn FnMut(Duration) -> Duration) -> Start) {
    let mut times = Vec::new();
    let mut late = Vec::new();
    for pair in pairs(true) {
        for seed in 0..100 {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let mut up_to = |most: Duration| most * (rng.next_u32() % 1024) / 1024;
            let plan = Plan { start: start(&mut up_to), ..Plan::new(seed) };
            let took = time_to_direct(plan, pair);
            let took = took.unwrap_or_else(|| panic!("{what}: relayed, {plan:?}: {pair:?}"));
            times.push(took);
            if took > PROMISE {
                late.push((took, seed, pair));
            }
        }
    }
    times.sort();
    let [p50, p95] = [50, 95].map(|part| times[times.len() * part / 100]);
    println!("{what}: p50 {p50:?}, p95 {p95:?}, worst {:?}", times.last());
    for (took, seed, pair) in late.iter().take(3) {
        println!("  {took:?}, seed {seed}, {pair:?}");
    }
    assert!(late.is_empty(), "{what}: {} of {} late", late.len(), times.len());
}

#[test]
fn first_host_waits_until_the_other_knows_it() {
    assert_promise("knows", |up_to| Start {
        knows: [up_to(8 * SECOND), Duration::ZERO],
        ..Start::default()
    });
}

#[test]
fn host_waits_until_the_other_is_at_its_relay() {
    assert_promise("connects", |up_to| {
        let connects = [up_to(5 * SECOND), up_to(5 * SECOND)];
        Start { connects, ..Start::default() }
    });
}

#[test]
fn stalled_relay_is_tolerated() {
    assert_promise("stall", |up_to| Start { stall: up_to(4 * SECOND), ..Start::default() });
}

#[test]
fn late_datagrams_are_tolerated() {
    assert_promise("lag", |up_to| Start { lag: up_to(50 * MS), ..Start::default() });
}

#[test]
fn all_delays_together_are_tolerated() {
    assert_promise("all", |up_to| Start {
        knows: [up_to(4 * SECOND), up_to(4 * SECOND)],
        connects: [up_to(4 * SECOND), up_to(4 * SECOND)],
        stall: up_to(2 * SECOND),
        lag: up_to(50 * MS),
    });
}
