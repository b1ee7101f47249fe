use std::time::Duration;

use super::world::{CLEAN, Link, MS, World};
use crate::tcp::{Failure, State};

#[test]
fn one_direction_may_close_while_the_other_continues() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 50_000);
    world.ends[0].ends = true;
    world.run_until(|world| world.state(0) == State::FinWait2);
    assert_eq!(world.state(1), State::CloseWait);
    world.queue_data(1, 500_000);
    world.ends[1].ends = true;
    world.run_until(|world| world.all_received() && world.state(1) == State::Closed);
    assert_eq!(world.state(0), State::TimeWait);
    world.run_for(Duration::from_secs(61));
    assert!(world.tcp(0).is_over());
}

#[test]
fn both_may_close_at_once() {
    let mut world = World::connected(1, CLEAN);
    world.ends.iter_mut().for_each(|end| end.ends = true);
    world.pump();
    assert!(world.both(State::FinWait1));
    world.run_for(15 * MS);
    assert!(world.both(State::Closing), "{:?}", world.state(0));
    world.run_until(|world| world.both(State::TimeWait));
}

#[test]
fn a_lost_last_acknowledgement_is_repeated_in_time_wait() {
    let mut world = World::connected(1, CLEAN);
    world.ends[0].ends = true;
    world.run_until(|world| world.state(1) == State::CloseWait);
    world.run_for(50 * MS);
    world.filter = Box::new(|from, _, _| from == 1);
    world.ends[1].ends = true;
    world.run_until(|world| world.state(0) == State::TimeWait);
    world.run_for(10 * MS);
    assert_eq!(world.state(1), State::LastAck);
    world.filter = Box::new(|_, _, _| true);
    world.run_until(|world| world.state(1) == State::Closed);
}

#[test]
fn dropping_a_stream_with_all_data_read_sends_fin_and_resets_later_data() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 100);
    world.run_until(World::all_received);
    let now = world.now;
    world.tcp(1).close(now);
    world.run_until(|world| world.state(0) == State::CloseWait);
    world.queue_data(0, 100);
    world.run_until(|world| world.ends[0].failure.is_some());
    assert_eq!(world.ends[0].failure, Some(Failure::Reset));
    assert!(world.both(State::Closed));
}

#[test]
fn dropping_a_stream_with_unread_data_sends_a_reset() {
    let mut world = World::connected(1, CLEAN);
    world.ends[1].reads = false;
    world.queue_data(0, 100);
    world.run_for(30 * MS);
    let now = world.now;
    world.tcp(1).close(now);
    world.run_until(|world| world.ends[0].failure.is_some());
    assert_eq!(world.ends[0].failure, Some(Failure::Reset));
    assert_eq!(world.budget.used(), 0);
}

#[test]
fn data_written_before_dropping_a_stream_arrives() {
    let mut world = World::connected(1, Link { loss: 300, ..CLEAN });
    world.queue_data(0, 200_000);
    world.pump();
    let now = world.now;
    let in_flight = world.tcp(0).tx.next().since(world.tcp(0).tx.una());
    assert!(in_flight > 0);
    world.tcp(0).close(now);
    world.run_until(|world| world.ends[1].tcp.as_ref().unwrap().is_at_end());
    assert_eq!(world.ends[1].failure, None);
    assert!(world.ends[1].received.len() >= 100_000, "{}", world.ends[1].received.len());
}

#[test]
fn an_orphan_waits_for_its_peer_for_a_limited_time() {
    let mut world = World::connected(1, CLEAN);
    let now = world.now;
    world.tcp(0).close(now);
    world.run_for(Duration::from_secs(59));
    assert_eq!(world.state(0), State::FinWait2);
    world.run_for(Duration::from_secs(3));
    assert!(world.tcp(0).is_over());
}

/// The peer acknowledges each probe, but its window remains closed.
#[test]
fn an_orphan_with_a_closed_window_fails_whichever_end_closed_first() {
    for (peer_ends, state) in [(false, State::FinWait1), (true, State::LastAck)] {
        let mut world = World::connected(1, CLEAN);
        world.ends[1].reads = false;
        world.ends[1].ends = peer_ends;
        world.queue_data(0, 500_000);
        world.run_for(Duration::from_secs(5));
        let now = world.now;
        world.tcp(0).close(now);
        world.run_for(Duration::from_secs(95));
        assert_eq!(world.state(0), state);
        world.run_for(Duration::from_secs(10));
        assert!(world.tcp(0).is_over());
        assert_eq!(world.ends[1].failure, Some(Failure::Reset), "the peer is notified");
        assert!(world.tcp(1).readable() > 0, "earlier data can still be read");
        let now = world.now;
        world.tcp(1).close(now);
        assert_eq!(world.budget.used(), 0);
    }
}

#[test]
fn an_orphan_with_a_slow_peer_sends_all_data() {
    let mut world = World::connected(1, CLEAN);
    world.ends[1].reads = false;
    world.queue_data(0, 300_000);
    world.run_for(Duration::from_secs(5));
    let now = world.now;
    world.tcp(0).close(now);
    let mut seconds = 0;
    while !world.tcp(1).is_at_end() {
        let now = world.now;
        world.tcp(1).read(&mut [0; 20_000], now);
        world.run_for(Duration::from_secs(80));
        seconds += 80;
    }
    assert!((300..2000).contains(&seconds), "{seconds} s");
    assert_eq!(world.ends[1].failure, None);
}
