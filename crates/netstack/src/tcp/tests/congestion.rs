//! Properties of BBR on different paths: throughput, length of the queue, and fairness.

use std::time::Duration;

use sim::Link;

use super::{
    bottleneck::{Bottleneck, payload},
    world::AROUND,
};
use crate::tcp::CongestionControl::{Bbr, Cubic};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const RTT: Duration = Duration::from_millis(66);

/// 40 Mbit/s, of which 37.7 are payload.
const LONG: Link = Link {
    rate: Some(5_000_000),
    delay: Duration::from_millis(33),
    queue: RTT,
    overhead: AROUND,
    ..Link::CLEAN
};

/// A flow that has run for some time.
fn flowing(seed: u64, path: Link) -> Bottleneck {
    let mut link = Bottleneck::new(seed, path);
    link.join(Bbr);
    link.run(3 * S);
    link.waits();
    link
}

/// Runs for `duration`. Returns the used part of the link's payload rate.
fn share(link: &mut Bottleneck, duration: Duration) -> f64 {
    link.rates(duration)[0] / link.payload()
}

#[test]
fn a_long_path_is_filled_despite_random_loss() {
    for (loss, reordering, least) in [(0, 0, 0.93), (10, 0, 0.88), (10, 10, 0.88), (100, 0, 0.8)] {
        let path = Link { loss, reordering, late: 2 * MS, ..LONG };
        let filled = share(&mut flowing(1, path), 10 * S);
        eprintln!("66 ms, {loss} of 10,000 lost, {reordering} late: {filled:.2} of the path");
        assert!(filled > least, "{filled} where {loss} of 10,000 are lost");
    }
}

/// Late segments arrive after dozens of others, and the recovery is undone.
#[test]
fn late_segments_are_not_considered_lost() {
    for late in [2 * MS, 10 * MS] {
        let filled = share(&mut flowing(2, Link { reordering: 50, late, ..LONG }), 10 * S);
        assert!(filled > 0.93, "{filled} where 5 of 1000 are {late:?} late");
    }
}

/// The late segments are considered lost and limit the data in flight, until the receiver reports
/// duplicates.
#[test]
fn a_spurious_recovery_restores_the_window() {
    let mut link = flowing(1, Link { late: 120 * MS, ..LONG });
    link.run(S / 2);
    let window = |link: &Bottleneck| link.sender(0).tx.flight.window();
    let before = window(&link);
    link.change(|link| link.reordering = 3000);
    link.run(20 * MS);
    link.change(|link| link.reordering = 0);
    let mut least = before;
    for _ in 0..40 {
        link.run(10 * MS);
        least = least.min(window(&link));
    }
    let after = window(&link);
    assert!(least < before * 8 / 10 && after > before * 95 / 100, "{before}, {least}, {after}");
}

#[test]
fn the_queue_stays_short_although_a_long_one_would_fit() {
    let mut link = flowing(1, Link { queue: 10 * RTT, ..LONG });
    let filled = share(&mut link, 10 * S);
    let (least, mean, most) = link.waits();
    assert!(filled > 0.93, "{filled} of the path");
    assert_eq!(least, Duration::ZERO, "the queue is empty at times");
    assert!(mean < RTT / 4 && most < RTT, "{mean:?} in the mean, {most:?} at most");
}

/// The queue has an eighth of the bandwidth-delay product, so each bandwidth probe overflows it.
#[test]
fn a_short_queue_does_not_overflow_often() {
    let mut link = flowing(1, Link { queue: RTT / 8, ..LONG });
    let (sent, received) = (link.flows[0].sent, link.flows[0].received);
    let filled = share(&mut link, 20 * S);
    let (sent, received) = (link.flows[0].sent - sent, link.flows[0].received - received);
    let lost = 1.0 - received as f64 / 1368.0 / sent as f64;
    eprintln!("a queue of {:?}: {filled:.2} of the path, {lost:.4} lost", RTT / 8);
    assert!(filled > 0.8 && lost < 0.01, "{filled} of the path, {lost} of it lost");
}

/// As on a radio link, or with threads that wait long for a core: acknowledgements arrive in
/// batches, and data is sent late.
#[test]
fn a_sender_that_runs_only_at_intervals_fills_the_path() {
    let short = Link { rate: Some(12_500_000), delay: MS / 10, queue: 40 * MS, ..LONG };
    for (path, turn) in [
        (Link { delay: 5 * MS, queue: 100 * MS, ..LONG }, 40 * MS),
        (short, 10 * MS),
        (short, 20 * MS),
    ] {
        let mut link = flowing(1, path);
        // The minimum round trip time is still the previous one.
        link.turn = turn;
        let filled = [(); 3].map(|()| share(&mut link, 3 * S));
        eprintln!("a turn each {turn:?}, {:?} one way: {filled:.2?} of the path", path.delay);
        assert!(filled[0] > 0.6 && filled[2] > 0.75, "{filled:?} of the path");
    }
}

#[test]
fn probe_rtt_reduces_the_data_in_flight_every_five_seconds() {
    let mut link = flowing(1, LONG);
    let held = (LONG.rate.unwrap() as f64 * RTT.as_secs_f64()) as u32;
    let (mut pauses, mut before) = (Vec::new(), false);
    for step in 0..1500 {
        link.run(10 * MS);
        let pauses_now = link.sender(0).tx.flight.board.in_flight() < held * 55 / 100;
        if pauses_now && !before {
            pauses.push(step * 10);
        }
        before = pauses_now;
    }
    let [first, second, third] = pauses[..] else { panic!("pauses at {pauses:?} ms") };
    for between in [second - first, third - second] {
        assert!((5000..5600).contains(&between), "pauses at {pauses:?} ms");
    }
}

#[test]
fn bursts_are_limited_to_some_milliseconds_of_the_pacing_rate() {
    let mut link = Bottleneck::new(1, LONG);
    link.join(Bbr);
    link.run(10 * S);
    // At most ten milliseconds are made up for after waiting for an acknowledgement, one
    // millisecond is the quantum, and half a millisecond is sent ahead of the pace. The pace is
    // that of a bandwidth probe.
    let most = (5e6 * 1.25 * 11.5e-3) as usize;
    assert!(link.burst() < most, "{} bytes left at once, {most} would be right", link.burst());
    let left = std::mem::take(&mut link.flows[0].left);
    link.run(2 * S);
    link.queue_data(0, left);
    link.run(2 * S);
    assert!(link.burst() < most, "{} bytes left at once after a silence", link.burst());
}

#[test]
fn two_flows_share_a_path_evenly() {
    let mut link = flowing(1, LONG);
    link.join(Bbr);
    link.run(10 * S);
    let rates = link.rates(10 * S);
    let sum: f64 = rates.iter().sum();
    let fairness = sum.powi(2) / (2.0 * rates.iter().map(|rate| rate.powi(2)).sum::<f64>());
    eprintln!("two flows: {rates:.1?} Mbit/s");
    assert!(fairness > 0.8 && sum > 0.93 * payload(LONG), "{rates:?} Mbit/s");
}

#[test]
fn bbr_and_cubic_do_not_starve_each_other() {
    for queue in [RTT, 3 * RTT] {
        let mut link = Bottleneck::new(1, Link { queue, ..LONG });
        link.join(Cubic);
        link.join(Bbr);
        link.run(10 * S);
        let rates = link.rates(30 * S);
        eprintln!("CUBIC beside BBR, a queue of {queue:?}: {rates:.1?} Mbit/s");
        let least = rates[0].min(rates[1]);
        assert!(least > 0.1 * payload(LONG), "{rates:?} Mbit/s with a queue of {queue:?}");
    }
}

#[test]
fn after_a_long_application_limited_time_the_path_is_filled_at_once() {
    let mut link = flowing(1, LONG);
    link.flows[0].left = 0;
    link.run(S);
    for _ in 0..200 {
        link.queue_data(0, 20_000);
        link.run(100 * MS);
    }
    link.queue_data(0, u64::MAX / 4);
    link.run(2 * RTT);
    let filled = share(&mut link, S);
    assert!(filled > 0.9, "{filled} of the path");
}

#[test]
fn a_tenfold_change_of_the_rate_is_followed_in_seconds() {
    // A short queue is detected by losses, a long one by the rate.
    for queue in [RTT, 10 * RTT] {
        let mut link = flowing(1, Link { queue, ..LONG });
        link.change(|link| link.rate = LONG.rate.map(|rate| rate / 10));
        link.run(10 * S);
        link.waits();
        let filled = share(&mut link, 4 * S);
        let (_, mean, _) = link.waits();
        eprintln!("ten times slower, a queue of {queue:?}: {filled:.2}, {mean:?} in it");
        assert!(filled > 0.85, "{filled} of the slow path");
        assert!(mean < RTT, "{mean:?} in its queue");
        link.change(|link| link.rate = LONG.rate);
        link.run(8 * S);
        let filled = share(&mut link, 4 * S);
        assert!(filled > 0.85, "{filled} of the fast path");
    }
}

#[test]
fn all_bytes_arrive_despite_loss_reordering_and_drops() {
    for seed in 0..5 {
        let path = Link { loss: 300, reordering: 300, late: 9 * MS, queue: 5 * MS, ..LONG };
        let mut link = Bottleneck::new(seed, path);
        link.join(Bbr);
        link.flows[0].left = 3_000_000;
        link.run(30 * S);
        assert_eq!(link.flows[0].received, 3_000_000, "with seed {seed}");
    }
}

#[test]
fn the_initial_window_is_sent_at_once() {
    let mut link = Bottleneck::new(1, LONG);
    link.join(Bbr);
    link.run(RTT + MS);
    assert_eq!(link.flows[0].sent, 1 + 10, "SYN, then ten segments");
}
