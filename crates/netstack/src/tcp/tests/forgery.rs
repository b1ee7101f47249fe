use super::world::{Link, World};
use crate::tcp::{Failure, State, flags, options::Timestamps};

fn acks(world: &mut World, end: usize) -> usize {
    let before = world.ends[end].sent;
    world.pump();
    world.ends[end].sent - before
}

#[test]
fn a_reset_counts_only_at_the_very_next_byte() {
    let mut world = World::connected(1, Link::CLEAN);
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
        assert_eq!(acks(&mut world, 1), 0, "outside of the window it is nothing");
    }
    world.forge(1, |header| header.flags = flags::RST);
    assert_eq!(world.tcp(1).take_failure(), Some(Failure::Reset));
}

#[test]
fn a_syn_in_a_connection_is_challenged_and_changes_nothing() {
    let mut world = World::connected(1, Link::CLEAN);
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
fn challenges_are_few() {
    let mut world = World::connected(1, Link::CLEAN);
    let mut all = 0;
    for _ in 0..1000 {
        world.forge(1, |header| header.flags = flags::SYN | flags::ACK);
        world.forge(1, |header| {
            header.flags = flags::RST;
            header.seq = header.seq + 5;
        });
        all += acks(&mut world, 1);
    }
    assert_eq!(all, 5, "ten, and each answers two");
}

#[test]
fn acknowledgements_of_what_was_never_sent_free_nothing() {
    let mut world = World::connected(1, Link::CLEAN);
    let una = world.tcp(1).tx.una();
    for ack in [1, 1 << 20, 1 << 30] {
        world.forge(1, |header| header.ack = header.ack + ack);
        world.forge(1, |header| header.ack = header.ack - (1 << 20) - ack);
        assert_eq!(world.tcp(1).tx.una(), una);
    }
    assert!(acks(&mut world, 1) >= 1);
}

#[test]
fn an_old_timestamp_is_an_old_segment() {
    let mut world = World::connected(1, Link::CLEAN);
    world.say(0, 10);
    world.run_until(World::all_heard);
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
    assert_eq!(acks(&mut world, 1), 1, "its sender hears where we are");
    fin(&mut world, 0);
    assert_eq!(world.tcp(1).rx.next(), expected + 1);
}

#[test]
fn selective_acknowledgements_that_lie_harm_nobody_else() {
    let mut world = World::connected(1, Link::CLEAN);
    world.say(0, 400_000);
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
    // What was wrongly taken for delivered is sent again after a time-out at the latest.
    world.run_until(World::all_heard);
}

/// Each byte that is told of for itself would be a stretch to look at for ever (as in
/// CVE-2019-11478).
#[test]
fn selective_acknowledgements_of_single_bytes_cut_no_segment() {
    let mut world = World::connected(1, Link::CLEAN);
    world.say(0, 2_000_000);
    world.run_until(World::all_heard);
    world.filter = Box::new(|_, _, _| false);
    world.say(0, 500_000);
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
    let stretches = world.tcp(0).tx.flight.board.iter().count();
    assert!(stretches < 3 * segments, "{stretches} stretches of {segments} segments");
    world.filter = Box::new(|_, _, _| true);
    world.run_until(World::all_heard);
}
