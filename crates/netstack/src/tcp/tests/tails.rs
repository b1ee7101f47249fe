//! Losses at the end of a transfer, which no later segments reveal: RFC 8985 section 7.

use super::world::{CLEAN, MS, World};
use crate::tcp::CongestionControl::{self, Bbr, Cubic};

/// Payload of a full segment.
const FULL: usize = 1368;
const SEGMENTS: usize = 10;

/// A connection with a measured path, which then sends ten segments.
fn sending(control: CongestionControl) -> World {
    let mut world = World::with(control, 1, CLEAN);
    world.queue_data(0, 300_000);
    world.run_until(World::all_received);
    world.run_for(100 * MS);
    world.queue_data(0, SEGMENTS * FULL);
    world
}

/// A timeout takes 200 ms, and its window is one segment. A probe is sent after two round trips of
/// 20 ms. With a single segment in flight it waits for a delayed acknowledgement.
#[test]
fn the_loss_of_a_tail_of_any_length_costs_no_time_out() {
    let tails = (1..=SEGMENTS).flat_map(|lost| [Bbr, Cubic].map(|control| (lost, control)));
    for (lost, control) in tails {
        let mut world = sending(control);
        let (begin, first) = (world.now, world.ends[0].sent);
        let before = world.tcp(0).tx.flight.window();
        let tail = first + SEGMENTS - lost..first + SEGMENTS;
        world.filter = Box::new(move |from, number, _| from != 0 || !tail.contains(&number));
        world.run_until(World::all_received);
        let bound = if lost == 1 { 250 * MS } else { 200 * MS };
        assert!(world.now.since(begin) < bound, "{lost}: {:?}", world.now.since(begin));
        world.run_for(20 * MS);
        let window = world.tcp(0).tx.flight.window();
        assert!(window > before / 2, "{lost}: {window} of {before}");
        let again = world.ends[0].sent - first - SEGMENTS;
        assert!((lost..=lost + 1).contains(&again), "{again} for {lost}");
    }
}

#[test]
fn a_probe_that_repairs_a_loss_counts_as_congestion_once() {
    let mut world = sending(Cubic);
    let (before, first) = (world.tcp(0).tx.flight.window(), world.ends[0].sent);
    world.filter = Box::new(move |_, number, _| number != first + SEGMENTS - 1);
    world.run_until(World::all_received);
    world.queue_data(0, FULL);
    world.run_until(World::all_received);
    world.run_for(50 * MS);
    assert_eq!(world.ends[0].sent, first + SEGMENTS + 2);
    let window = f64::from(world.tcp(0).tx.flight.window()) / f64::from(before);
    assert!((0.65..0.75).contains(&window), "{window} of the window");
}

/// The acknowledgements were late, and no data was lost.
#[test]
fn a_needless_probe_does_not_reduce_the_window() {
    let mut world = sending(Cubic);
    let (before, first) = (world.tcp(0).tx.flight.window(), world.ends[0].sent);
    world.filter = Box::new(|from, _, _| from == 0);
    world.run_for(35 * MS);
    assert!(world.all_received());
    world.filter = Box::new(|_, _, _| true);
    world.run_for(100 * MS);
    assert_eq!(world.ends[0].sent, first + SEGMENTS + 1, "one probe");
    world.queue_data(0, FULL);
    world.run_until(World::all_received);
    world.run_for(50 * MS);
    let window = world.tcp(0).tx.flight.window();
    assert!(window >= before, "{window}, not {before}");
}
