//! Each effect of a link alone.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use packet::Ecn;
use sim::{Datagram, Link, Network};

const MS: Duration = Duration::from_millis(1);

fn ends() -> [SocketAddr; 2] {
    [1, 2].map(|number| ([192, 0, 2, number], 51820).into())
}

/// Sends datagrams of 1,000 bytes, one per millisecond. Returns them with their arrival times.
fn arrivals(link: Link, seed: u64, count: u32) -> Vec<(Duration, u32, Datagram)> {
    let network = Network::new(seed, link);
    let began = network.now();
    let mut arrived = Vec::new();
    let mut drain = |network: &Network| {
        while let Some(datagram) = network.poll_arrival() {
            let number = u32::from_be_bytes(datagram.bytes[..4].try_into().unwrap());
            arrived.push((network.now() - began, number, datagram));
        }
    };
    let [from, to] = ends();
    for number in 0..count {
        let mut bytes = vec![0; 1_000];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        network.send(Datagram { ecn: Ecn::Ect0, ..Datagram::new(from, to, bytes) });
        let end = began + MS * (number + 1);
        while let Some(next) = network.next_arrival().filter(|next| *next <= end) {
            network.pass_until(next);
            drain(&network);
        }
        network.pass_until(end);
    }
    while let Some(next) = network.next_arrival() {
        network.pass_until(next);
        drain(&network);
    }
    arrived
}

#[test]
fn clean_link_only_delays() {
    for (at, (when, number, datagram)) in (0..).zip(arrivals(Link::CLEAN, 1, 100)) {
        assert_eq!((when, number), (MS * (at + 1), at));
        assert_eq!((datagram.bytes.len(), datagram.ecn), (1_000, Ecn::Ect0));
    }
}

#[test]
fn loss_and_duplication_match_the_configured_rates() {
    for seed in 0..5 {
        let lost = 10_000 - arrivals(Link { loss: 300, ..Link::CLEAN }, seed, 10_000).len();
        assert!((200..400).contains(&lost), "{lost} of 10,000");
        let link = Link { duplication: 300, ..Link::CLEAN };
        let more = arrivals(link, seed, 10_000).len() - 10_000;
        assert!((200..400).contains(&more), "{more} of 10,000");
    }
}

#[test]
fn corruption_flips_one_bit() {
    let arrived = arrivals(Link { corruption: 10_000, ..Link::CLEAN }, 1, 500);
    let mut bits = HashSet::new();
    for (number, (_, _, datagram)) in (0u32..).zip(arrived) {
        let mut sent = vec![0; 1_000];
        sent[..4].copy_from_slice(&number.to_be_bytes());
        let changed = sent.iter().zip(&datagram.bytes).map(|(one, other)| one ^ other);
        let changed: Vec<_> = changed.enumerate().filter(|(_, bits)| *bits != 0).collect();
        assert_eq!(changed.iter().map(|(_, bits)| bits.count_ones()).sum::<u32>(), 1);
        bits.insert(changed[0]);
    }
    assert!(bits.len() > 400, "it is another bit each time");
}

#[test]
fn jitter_is_uniform_and_reorders() {
    let arrived = arrivals(Link { jitter: 20 * MS, ..Link::CLEAN }, 1, 5_000);
    let late = |(when, number, _): &(Duration, u32, Datagram)| *when - MS * (number + 1);
    let sum: Duration = arrived.iter().map(late).sum();
    assert!(arrived.iter().all(|arrival| late(arrival) < 20 * MS));
    assert!((9 * MS..11 * MS).contains(&(sum / 5_000)), "{sum:?} in all");
    assert!(arrived.windows(2).any(|pair| pair[1].1 < pair[0].1), "some change places");
}

#[test]
fn only_reordered_datagrams_are_late_by_the_configured_time() {
    let link = Link { reordering: 1_000, late: 7 * MS, ..Link::CLEAN };
    let arrived = arrivals(link, 1, 5_000);
    let late = arrived.iter().map(|(when, number, _)| *when - MS * (number + 1));
    let (late, others): (Vec<_>, Vec<_>) = late.partition(|late| !late.is_zero());
    assert!(late.iter().all(|late| *late == 7 * MS));
    assert!((400..600).contains(&late.len()), "{} late, {} not", late.len(), others.len());
}

/// 1,000 bytes and 250 of headers at 125,000 bytes a second take ten milliseconds. With one
/// datagram per millisecond, the queue of 30 ms is soon full.
#[test]
fn slow_link_queues_up_to_its_limit_and_drops_the_rest() {
    let link = Link { rate: Some(125_000), overhead: 250, queue: 30 * MS, ..Link::CLEAN };
    let arrived = arrivals(link, 1, 1_000);
    for (at, pair) in arrived.windows(2).enumerate() {
        assert_eq!(pair[1].0 - pair[0].0, 10 * MS, "behind arrival {at}");
    }
    for (when, number, _) in &arrived {
        let waited = *when - MS * *number - 11 * MS;
        assert!(waited <= 30 * MS, "{number} waited {waited:?}");
    }
    assert!((100..=104).contains(&arrived.len()), "{} arrived", arrived.len());
}

#[test]
fn each_address_has_its_own_link_queue() {
    let network = Network::new(1, Link { rate: Some(1_000), ..Link::CLEAN });
    let [one, two] = ends();
    network.send(Datagram::new(one, two, [0; 500]));
    assert_eq!(network.wait_to(two.ip()), Duration::from_millis(500));
    assert_eq!(network.wait_to(one.ip()), Duration::ZERO);
    network.set_link_to(one.ip(), Link { loss: 10_000, ..Link::CLEAN });
    network.send(Datagram::new(two, one, [0; 500]));
    network.pass(Duration::from_secs(1));
    assert_eq!(network.poll_arrival().map(|datagram| datagram.to), Some(two));
    assert_eq!(network.poll_arrival(), None);
}

#[test]
fn congestion_marks_ecn_and_the_length_limit_drops() {
    let arrived = arrivals(Link { congested: true, ..Link::CLEAN }, 1, 10);
    assert!(arrived.iter().all(|(_, _, datagram)| datagram.ecn == Ecn::Ce));
    assert_eq!(arrivals(Link { longest: 1_000, ..Link::CLEAN }, 1, 10).len(), 10);
    assert_eq!(arrivals(Link { longest: 999, ..Link::CLEAN }, 1, 10).len(), 0);
}

#[test]
fn same_seed_repeats_and_another_differs() {
    let link = Link {
        jitter: 30 * MS,
        loss: 500,
        duplication: 500,
        reordering: 500,
        late: 50 * MS,
        corruption: 0,
        ..Link::CLEAN
    };
    let order = |seed| {
        let arrived = arrivals(link, seed, 500);
        arrived.into_iter().map(|(when, number, _)| (when, number)).collect::<Vec<_>>()
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}
