//! Which pairs of boxes get direct, and how soon: what theory says, and no other.

use std::time::Duration;

use rand_chacha::rand_core::Rng;
use sim::{Dependence, Nat};

use crate::world::{MS, Plan, SECOND, World};

const BOXES: [Nat; 6] = [
    Nat::FULL_CONE,
    Nat::ADDRESS_RESTRICTED,
    Nat::PORT_RESTRICTED,
    Nat::NO_INPUT_DROP,
    Nat::SYMMETRIC,
    Nat::UDP_BLOCKED,
];

/// Whether a box of which nobody can know the outer port meets one that must know it.
fn theory(pair: [Nat; 2]) -> bool {
    let symmetric = |nat: Nat| nat.mapping != Dependence::EndpointIndependent;
    let strict = |nat: Nat| nat.filtering == Dependence::AddressAndPortDependent;
    let hopeless = |one: Nat, other: Nat| one.blocks_udp || symmetric(one) && strict(other);
    !hopeless(pair[0], pair[1]) && !hopeless(pair[1], pair[0])
}

fn pairs(direct: bool) -> impl Iterator<Item = [Nat; 2]> {
    let pairs = BOXES.into_iter().flat_map(|one| BOXES.map(|other| [one, other]));
    pairs.filter(move |pair| theory(*pair) == direct)
}

/// How long it takes until both are direct, where one or both begin to talk.
fn time_to_direct(plan: Plan, pair: [Nat; 2], within: Duration) -> Option<Duration> {
    let mut world = World::new(plan, pair);
    // Endpoints that are as old as may be, and others.
    let age = SECOND * (world.rng.next_u32() % 40);
    world.run_for(age);
    let began = world.network.now();
    world.hosts[0].talks = true;
    if world.rng.next_u32().is_multiple_of(2) {
        let later = MS * (world.rng.next_u32() % 200);
        world.run_for(later);
        world.hosts[1].talks = true;
    }
    let direct = world.run(began + within, World::both_direct);
    direct.then(|| world.network.now() - began)
}

#[test]
fn a_pair_gets_direct_if_theory_says_so_within_a_second() {
    let mut times = Vec::new();
    for pair in pairs(true) {
        for seed in 0..150 {
            let plan = Plan::new(seed);
            let took = time_to_direct(plan, pair, 5 * SECOND);
            times.push(took.unwrap_or_else(|| panic!("relayed, {plan:?}: {pair:?}")));
        }
    }
    times.sort();
    let [p50, p95, worst] =
        [50, 95, 100].map(|part| times[(times.len() * part / 100).min(times.len() - 1)]);
    println!("{} pairs: p50 {p50:?}, p95 {p95:?}, worst {worst:?}", times.len());
    assert!(p50 <= 300 * MS && p95 <= SECOND, "p50 {p50:?}, p95 {p95:?}");
}
