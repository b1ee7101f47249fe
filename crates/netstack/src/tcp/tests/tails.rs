//! The last segments of a speech, behind which nothing tells that they are missing: RFC
//! 8985 section 7.

use super::world::{CLEAN, MS, World};
use crate::tcp::CongestionControl::{self, Bbr, Cubic};

/// Payload of a full segment.
const FULL: usize = 1368;
const SEGMENTS: usize = 10;

/// A connection whose path was measured, which then says ten segments.
fn speaking(control: CongestionControl) -> World {
    let mut world = World::with(control, 1, CLEAN);
    world.say(0, 300_000);
    world.run_until(World::all_heard);
    world.run_for(100 * MS);
    world.say(0, SEGMENTS * FULL);
    world
}

/// A time-out is 200 ms, and its window one segment; a probe comes after two round trips
/// of 20 ms, but where one segment is left, whose acknowledgement may be late.
#[test]
fn a_tail_of_any_length_that_is_lost_costs_no_time_out() {
    let tails = (1..=SEGMENTS).flat_map(|lost| [Bbr, Cubic].map(|control| (lost, control)));
    for (lost, control) in tails {
        let mut world = speaking(control);
        let (begin, first) = (world.now, world.ends[0].sent);
        let before = world.tcp(0).tx.flight.window();
        let tail = first + SEGMENTS - lost..first + SEGMENTS;
        world.filter = Box::new(move |from, number, _| from != 0 || !tail.contains(&number));
        world.run_until(World::all_heard);
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
    let mut world = speaking(Cubic);
    let (before, first) = (world.tcp(0).tx.flight.window(), world.ends[0].sent);
    world.filter = Box::new(move |_, number, _| number != first + SEGMENTS - 1);
    world.run_until(World::all_heard);
    world.say(0, FULL);
    world.run_until(World::all_heard);
    world.run_for(50 * MS);
    assert_eq!(world.ends[0].sent, first + SEGMENTS + 2);
    let window = f64::from(world.tcp(0).tx.flight.window()) / f64::from(before);
    assert!((0.65..0.75).contains(&window), "{window} of the window");
}

/// The acknowledgements were late: nothing was lost.
#[test]
fn a_probe_that_was_needless_costs_no_window() {
    let mut world = speaking(Cubic);
    let (before, first) = (world.tcp(0).tx.flight.window(), world.ends[0].sent);
    world.filter = Box::new(|from, _, _| from == 0);
    world.run_for(35 * MS);
    assert!(world.all_heard());
    world.filter = Box::new(|_, _, _| true);
    world.run_for(100 * MS);
    assert_eq!(world.ends[0].sent, first + SEGMENTS + 1, "one probe");
    world.say(0, FULL);
    world.run_until(World::all_heard);
    world.run_for(50 * MS);
    let window = world.tcp(0).tx.flight.window();
    assert!(window >= before, "{window}, not {before}");
}
