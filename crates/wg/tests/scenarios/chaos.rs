//! Long runs over bad networks, and invariants that must hold in all of them.

use std::collections::{HashMap, HashSet};

use wg::constants::REKEY_TIMEOUT;

use crate::support::*;

fn bad_links() -> [Link; 4] {
    let link = |delay, jitter, loss, duplication| Link {
        delay: millis(delay),
        jitter: millis(jitter),
        loss,
        duplication,
        ..LINK
    };
    [link(5, 200, 0, 0), link(1, 1, 3000, 0), link(40, 3000, 1000, 2000), link(300, 50, 5000, 5000)]
}

/// Both hosts send for 20 minutes. Then the network becomes good.
fn run(seed: u64, link: Link) -> (World, HashSet<u32>) {
    let mut world = World::pair(seed);
    world.network.set_link(link);
    let mut sent = HashSet::new();
    for round in 0..1200u64 {
        // Sometimes both are silent until their sessions die.
        if round / 100 % 4 != seed % 4 {
            sent.insert(world.send(A, B));
            if round % 3 != 0 {
                sent.extend(world.send_many(B, A, 1 + (round % 5) as u32));
            }
        }
        world.run(millis(700 + round * 37 % 600));
    }
    world.network.set_link(LINK);
    world.run(secs(10));
    (world, sent)
}

#[test]
fn packets_arrive_at_most_once_unchanged_and_both_hosts_recover() {
    for (seed, link) in (0..).zip(bad_links().into_iter().cycle().take(12)) {
        let (mut world, sent) = run(seed, link);
        for host in [A, B] {
            let received = world.received(host);
            let distinct: HashSet<u32> = received.iter().copied().collect();
            assert_eq!(distinct.len(), received.len(), "a duplicate, seed {seed}");
            assert!(distinct.is_subset(&sent), "a packet that was not sent, seed {seed}");
            assert!(received.len() > 100, "{} received, seed {seed}", received.len());
        }
        world.send(A, B);
        world.send(B, A);
        world.run(secs(6));
        world.assert_flows(A, B);
    }
}

#[test]
fn no_counter_of_a_session_is_used_twice() {
    for (seed, link) in (100..).zip(bad_links()) {
        let (world, _) = run(seed, link);
        let mut next: HashMap<(bool, [u8; 4]), u64> = HashMap::new();
        for sent in &world.wire {
            if matches!(sent.what, What::Data | What::Keepalive) {
                let by_a = sent.from == world.hosts[A].address;
                let session = (by_a, sent.bytes[4..8].try_into().unwrap());
                let expected = next.entry(session).or_default();
                assert_eq!(sent.counter(), *expected, "seed {seed}");
                *expected += 1;
            }
        }
        assert!(next.len() >= 4, "there were several sessions");
    }
}

#[test]
fn initiations_are_at_least_a_rekey_timeout_apart_on_bad_networks() {
    for (seed, link) in (200..).zip(bad_links()) {
        let (world, _) = run(seed, link);
        for host in [A, B] {
            for pair in world.times(host, What::Initiation).windows(2) {
                assert!(pair[1] - pair[0] >= REKEY_TIMEOUT, "{pair:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    let wire = |seed| {
        let (world, _) = run(seed, bad_links()[2]);
        world.wire.iter().map(|sent| (sent.at, sent.bytes.clone())).collect::<Vec<_>>()
    };
    assert!(wire(7) == wire(7));
    assert!(wire(7) != wire(8));
}
