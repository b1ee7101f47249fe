use std::time::Duration;

use super::world::{CLEAN, World};
use crate::tcp::{Failure, State, flags, options::Timestamps};

fn acks(world: &mut World, end: usize) -> usize {
    let before = world.ends[end].sent;
    world.pump();
    world.ends[end].sent - before
}

#[test]
fn a_reset_is_accepted_only_at_the_next_sequence_number() {
    let mut world = World::connected(1, CLEAN);
    for ahead in [1, 1000, 60_000] {
        world.forge(1, |header| {
            header.flags = flags::RST;
            header.seq = header.seq + ahead;
        });
        assert_eq!(world.state(1), State::Established);
        assert_eq!(acks(&mut world, 1), 1, "it is challenged");
    }
    for away in [u32::MAX, 1 << 24] {
        world.forge(1, |header| {
            header.flags = flags::RST;
            header.seq = header.seq + away;
        });
        assert_eq!(acks(&mut world, 1), 0, "outside of the window it is ignored");
    }
    world.forge(1, |header| header.flags = flags::RST);
    assert_eq!(world.tcp(1).take_failure(), Some(Failure::Reset));
}

/// A world with the second end in a given state.
fn in_state(state: State) -> World {
    if state == State::SynReceived {
        let mut world = World::dialled(1, CLEAN);
        world.filter = Box::new(|from, number, _| from != 0 || number == 0);
        world.run_until(|world| world.state(1) == State::SynReceived);
        return world;
    }
    let mut world = World::connected(1, CLEAN);
    let [second_ends, first_ends] = match state {
        State::FinWait1 | State::FinWait2 => [true, false],
        State::CloseWait => [false, true],
        State::LastAck | State::Closing | State::TimeWait => [true, true],
        _ => [false, false],
    };
    // Acknowledgements that would change the state are lost.
    let stays = matches!(state, State::FinWait1 | State::LastAck | State::Closing);
    if state == State::LastAck {
        world.ends[0].ends = first_ends;
        world.run_until(|world| world.state(1) == State::CloseWait);
    }
    if stays {
        world.filter = Box::new(|from, _, bytes| from == 1 || bytes[13] & flags::FIN != 0);
    }
    world.ends[1].ends = second_ends;
    world.ends[0].ends = first_ends && state != State::TimeWait;
    world.run_until(|world| world.state(1) == state || state == State::TimeWait);
    if state == State::TimeWait {
        world.run_until(|world| world.state(1) == State::FinWait2);
        world.ends[0].ends = true;
        world.run_until(|world| world.state(1) == state);
    }
    world
}

/// RFC 9293 section 3.10.7.4, RFC 5961 section 3.2, RFC 1337.
#[test]
fn a_reset_is_handled_by_state_and_a_forged_one_is_ignored() {
    for (state, behind, failure) in [
        (State::SynReceived, State::Closed, Some(Failure::Refused)),
        (State::Established, State::Closed, Some(Failure::Reset)),
        (State::FinWait1, State::Closed, Some(Failure::Reset)),
        (State::FinWait2, State::Closed, Some(Failure::Reset)),
        (State::CloseWait, State::Closed, Some(Failure::Reset)),
        (State::Closing, State::Closed, None),
        (State::LastAck, State::Closed, None),
        (State::TimeWait, State::TimeWait, None),
    ] {
        let mut world = in_state(state);
        world.filter = Box::new(|_, _, _| false);
        world.network.take_in_flight();
        world.pump();
        let reset = |world: &mut World, away: u32| {
            let next = world.tcp(1).rx.next();
            world.forge(1, |header| (header.flags, header.seq) = (flags::RST, next + away));
        };
        for away in [1, 5000, u32::MAX, 1 << 30, 1 << 31] {
            reset(&mut world, away);
            assert_eq!(world.state(1), state, "{away} away");
        }
        let answers = acks(&mut world, 1);
        assert!(answers <= 1, "{answers} challenges in {state:?}");
        reset(&mut world, 0);
        assert_eq!((world.state(1), world.tcp(1).take_failure()), (behind, failure), "{state:?}");
    }
}

#[test]
fn a_syn_in_a_connection_is_challenged_without_effect() {
    let mut world = World::connected(1, CLEAN);
    let expected = world.tcp(1).rx.next();
    world.forge(1, |header| {
        header.flags = flags::SYN;
        header.seq = header.seq + 100;
    });
    assert_eq!(world.state(1), State::Established);
    assert_eq!(world.tcp(1).rx.next(), expected);
    assert_eq!(acks(&mut world, 1), 1);
}

#[test]
fn challenges_are_rate_limited() {
    let mut world = World::connected(1, CLEAN);
    let mut all = 0;
    for _ in 0..1000 {
        world.forge(1, |header| header.flags = flags::SYN | flags::ACK);
        world.forge(1, |header| {
            header.flags = flags::RST;
            header.seq = header.seq + 5;
        });
        all += acks(&mut world, 1);
    }
    assert_eq!(all, 5, "ten challenges, and each answer is for two");
}

#[test]
fn acknowledgements_of_unsent_data_are_ignored() {
    let mut world = World::connected(1, CLEAN);
    let una = world.tcp(1).tx.una();
    for ack in [1, 1 << 20, 1 << 30] {
        world.forge(1, |header| header.ack = header.ack + ack);
        world.forge(1, |header| header.ack = header.ack - (1 << 20) - ack);
        assert_eq!(world.tcp(1).tx.una(), una);
    }
    assert!(acks(&mut world, 1) >= 1);
}

#[test]
fn a_segment_with_an_old_timestamp_is_refused() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 10);
    world.run_until(World::all_received);
    let expected = world.tcp(1).rx.next();
    let fin = |world: &mut World, behind: u32| {
        world.forge(1, |header| {
            header.flags = flags::FIN | flags::ACK;
            let Timestamps { value, echo } = header.options.timestamps.unwrap();
            header.options.timestamps =
                Some(Timestamps { value: value.wrapping_sub(behind), echo });
        });
    };
    fin(&mut world, 5000);
    assert_eq!(world.tcp(1).rx.next(), expected);
    assert_eq!(acks(&mut world, 1), 1, "its sender gets the present state");
    fin(&mut world, 0);
    assert_eq!(world.tcp(1).rx.next(), expected + 1);
}

/// Timestamps wrap every 49.7 days, so a timestamp from 24 days ago cannot identify old segments
/// (RFC 7323 section 5.5).
#[test]
fn segments_are_accepted_after_any_idle_time() {
    for days in [1, 23, 25, 40, 49, 50, 75] {
        let mut world = World::connected(1, CLEAN);
        world.queue_data(0, 3000);
        world.run_until(World::all_received);
        world.run_for(Duration::from_secs(days * 24 * 3600));
        world.queue_data(0, 3000);
        world.queue_data(1, 3000);
        let begin = world.now;
        world.run_until(World::all_received);
        assert!(world.now.since(begin) < Duration::from_millis(100), "after {days} days");
    }
}

#[test]
fn false_selective_acknowledgements_harm_only_their_sender() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 400_000);
    for round in 0..200u32 {
        world.run_for(super::world::MS / 4);
        let una = world.tcp(0).tx.una();
        world.forge(0, |header| {
            let from = una + round * 37 % 9000;
            header.window = 900;
            header.options.sack =
                [(from, from + 1 + round * 91 % 5000), (from + 9000, from)].into_iter().collect();
        });
    }
    // Data that was wrongly considered delivered is retransmitted after a timeout at the latest.
    world.run_until(World::all_received);
}

/// Each separately acknowledged byte would otherwise become a range of the scoreboard (as in
/// CVE-2019-11478).
#[test]
fn selective_acknowledgements_of_single_bytes_do_not_split_segments() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 2_000_000);
    world.run_until(World::all_received);
    world.filter = Box::new(|_, _, _| false);
    world.queue_data(0, 500_000);
    world.pump();
    let (una, next) = (world.tcp(0).tx.una(), world.tcp(0).tx.next());
    let segments = next.since(una) as usize / 1300;
    assert!(segments > 50);
    for at in (1..next.since(una) - 8).step_by(8) {
        world.forge(0, |header| {
            header.window = u16::MAX;
            let block = |from| (una + at + from, una + at + from + 1);
            header.options.sack = [0, 2, 4, 6].map(block).into_iter().collect();
        });
    }
    let ranges = world.tcp(0).tx.flight.board.iter().count();
    assert!(ranges < 3 * segments, "{ranges} ranges of {segments} segments");
    world.filter = Box::new(|_, _, _| true);
    world.run_until(World::all_received);
}
