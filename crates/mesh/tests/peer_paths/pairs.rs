//! Pairs of NATs: which get a direct path, and how soon. The results must match the theory.

use std::{
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use ipc::Path;
use rand_chacha::rand_core::Rng;
use sim::{Datagram, Dependence, Nat, Network, Realm};

use crate::world::{MS, Plan, SECOND, World, outer};

const BOXES: [Nat; 6] = [
    Nat::FULL_CONE,
    Nat::ADDRESS_RESTRICTED,
    Nat::PORT_RESTRICTED,
    Nat::NO_INPUT_DROP,
    Nat::SYMMETRIC,
    Nat::UDP_BLOCKED,
];

/// Returns whether a direct path is possible. It is not between a NAT with an unpredictable port
/// and one that must know the port.
fn theory(pair: [Nat; 2]) -> bool {
    let symmetric = |nat: Nat| nat.mapping != Dependence::EndpointIndependent;
    let strict = |nat: Nat| nat.filtering == Dependence::AddressAndPortDependent;
    let hopeless = |one: Nat, other: Nat| one.blocks_udp || symmetric(one) && strict(other);
    !hopeless(pair[0], pair[1]) && !hopeless(pair[1], pair[0])
}

pub(crate) fn pairs(direct: bool) -> impl Iterator<Item = [Nat; 2]> {
    let pairs = BOXES.into_iter().flat_map(|one| BOXES.map(|other| [one, other]));
    pairs.filter(move |pair| theory(*pair) == direct)
}

/// Returns the time until both have a direct path, if one or both send.
fn time_to_direct(plan: Plan, pair: [Nat; 2], within: Duration) -> Option<Duration> {
    let mut world = World::new(plan, pair);
    // Endpoints of any allowed age.
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
fn possible_pairs_get_a_direct_path_within_a_second() {
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

#[test]
fn possible_pairs_get_a_direct_path_with_ten_percent_loss() {
    let mut times = Vec::new();
    for pair in pairs(true) {
        for seed in 0..60 {
            let mut plan = Plan::new(seed);
            plan.link.loss = 1_000;
            // An early ping at a NAT delays success to the second next round.
            let took = time_to_direct(plan, pair, 120 * SECOND);
            times.push(took.unwrap_or_else(|| panic!("relayed, {plan:?}: {pair:?}")));
        }
    }
    times.sort();
    let [p50, p95] = [50, 95].map(|part| times[times.len() * part / 100]);
    println!("p50 {p50:?}, p95 {p95:?}, worst {:?}", times.last());
    assert!(p50 <= 400 * MS && p95 <= SECOND, "p50 {p50:?}, p95 {p95:?}");
}

/// Its early pings sometimes make our NAT change our port, if that does not drop unexpected input.
#[test]
fn possible_pairs_with_a_stock_peer_get_a_direct_path() {
    let mut times = Vec::new();
    for pair in pairs(true).filter(|pair| !pair.iter().any(|nat| nat.tracks_input)) {
        for seed in 0..60 {
            let plan = Plan { stock: true, ..Plan::new(seed) };
            let took = time_to_direct(plan, pair, 60 * SECOND);
            times.push(took.unwrap_or_else(|| panic!("relayed, {plan:?}: {pair:?}")));
        }
    }
    times.sort();
    let [p50, p95] = [50, 95].map(|part| times[times.len() * part / 100]);
    println!("stock: p50 {p50:?}, p95 {p95:?}, worst {:?}", times.last());
    assert!(p50 <= 300 * MS && p95 <= SECOND, "p50 {p50:?}, p95 {p95:?}");
}

#[test]
fn impossible_pairs_stay_relayed_at_low_cost() {
    for pair in pairs(false) {
        for seed in 0..4 {
            let plan = Plan { pace: SECOND / 2, ..Plan::new(seed) };
            let mut world = World::new(plan, pair);
            world.hosts[0].talks = true;
            world.run_for(600 * SECOND);
            for at in 0..2 {
                let host = &world.hosts[at];
                let relay = Some(Path::Relay(2 - at as u16));
                assert!(host.told.iter().all(|(_, path)| *path == relay), "{:?}", host.told);
                assert!(host.count > 1_000, "{}: data does not arrive", host.count);
                // Twelve rounds of four pings to three addresses, started by either host.
                assert!(host.spent[0] <= 300, "{} pings, {pair:?}", host.spent[0]);
                assert!(host.spent[1] <= 120, "{} by relay, {pair:?}", host.spent[1]);
            }
        }
    }
}

/// Like the first ping of a stock peer, it arrives before the host has primed.
#[test]
fn nat_that_got_an_early_ping_is_passed_after_its_entry_expires() {
    for seed in 0..40 {
        let mut world = World::new(Plan::new(seed), [Nat::NO_INPUT_DROP; 2]);
        let [first, second] = [outer(0), outer(1)].map(|ip| SocketAddr::new(ip, 51820));
        world.network.send(Datagram::new(second, first, [0]));
        world.run_for(2 * world.plan.link.delay);
        world.hosts[0].talks = true;
        let end = world.began + 100 * SECOND;
        assert!(!world.run(world.began + 4 * SECOND, World::both_direct), "seed {seed}");
        assert!(world.run(end, World::both_direct), "seed {seed}");
    }
}

#[test]
fn hosts_of_one_network_use_local_addresses_at_once() {
    for seed in 0..40 {
        let plan = Plan::new(seed);
        let network = Network::new(seed, plan.link);
        let home = network.add_nat(Realm::INTERNET, Nat::PORT_RESTRICTED, &[outer(0)]);
        let addresses = [2, 3].map(|host| SocketAddr::from(([10, 0, 0, host], 51820)));
        let sockets = addresses.map(|address| vec![network.bind(home, address)]);
        let mut world = World::with_sockets(plan, network, sockets);
        world.hosts[0].talks = true;
        assert!(world.run(world.began + 300 * MS, World::both_direct));
        let used = [0, 1].map(|at| world.hosts[at].used);
        assert_eq!(used, [1, 0].map(|other| Some(Path::Direct(addresses[other]))));
    }
}

#[test]
fn ipv6_is_preferred_among_equal_paths_despite_jitter() {
    for seed in 0..10 {
        let mut plan = Plan::new(seed);
        plan.link.delay = 30 * MS;
        plan.link.jitter = 3 * MS;
        let network = Network::new(seed, plan.link);
        let sockets = [0, 1].map(|at: u16| {
            let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, at + 1);
            [outer(at.into()), v6.into()]
                .map(|ip| network.bind(Realm::INTERNET, SocketAddr::new(ip, 51820)))
                .to_vec()
        });
        let mut world = World::with_sockets(plan, network, sockets);
        world.hosts[0].talks = true;
        world.run_for(600 * SECOND);
        for host in &world.hosts {
            let is_v6 = matches!(host.used, Some(Path::Direct(addr)) if addr.is_ipv6());
            assert!(is_v6 && host.told.len() <= 3, "seed {seed}: {:?}", host.told);
        }
    }
}
