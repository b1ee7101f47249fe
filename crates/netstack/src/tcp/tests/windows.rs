use std::time::Duration;

use super::world::{CLEAN, Link, MS, World};
use crate::budget::Budget;

#[test]
fn a_reader_that_pauses_stops_the_writer_and_a_probe_finds_out_when_it_goes_on() {
    let mut world = World::connected(1, CLEAN);
    world.say(0, 1_000_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(60));
    let waiting = world.tcp(1).readable();
    assert!((60_000..140_000).contains(&waiting), "{waiting} bytes");
    let probes = world.ends[0].sent;
    world.run_for(Duration::from_secs(60));
    assert!((1..20).contains(&(world.ends[0].sent - probes)), "one now and then");
    // The news of the window is lost; a probe asks.
    world.filter = Box::new(|from, _, _| from == 0);
    world.ends[1].reads = true;
    world.pump();
    world.run_for(MS);
    world.filter = Box::new(|_, _, _| true);
    world.run_until(World::all_heard);
}

#[test]
fn a_closed_window_is_waited_for_as_long_as_the_peer_answers() {
    let mut world = World::connected(1, CLEAN);
    world.say(0, 1_000_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(6000));
    assert_eq!(world.ends[0].failure, None);
    world.ends[1].reads = true;
    world.run_until(World::all_heard);
}

/// RFC 9293 section 3.8.6 asks a sender to bear it.
#[test]
fn a_window_that_shrinks_below_what_flies_stops_the_stream_and_loses_nothing() {
    for window in [0, 1, 9] {
        let mut world = World::connected(1, CLEAN);
        world.say(0, 3_000_000);
        world.run_until(|world| world.ends[1].heard.len() > 50_000);
        world.filter = Box::new(move |from, _, bytes| {
            if from == 1 {
                bytes[14..16].copy_from_slice(&u16::to_be_bytes(window));
            }
            true
        });
        world.run_for(Duration::from_secs(1));
        let sent = world.ends[0].sent_bytes;
        assert!(window > 0 || sent < 3_000_000, "there is more to say");
        world.run_for(Duration::from_secs(60));
        let more = world.ends[0].sent_bytes - sent;
        assert!(window > 0 || more == 0, "{more} bytes into a closed window");
        assert_eq!(world.ends[0].failure, None);
        world.filter = Box::new(|_, _, _| true);
        world.run_until(World::all_heard);
    }
}

#[test]
fn a_slow_reader_is_not_fed_in_small_pieces() {
    let mut world = World::connected(1, CLEAN);
    world.ends[1].reads = false;
    world.say(0, 500_000);
    world.run_for(Duration::from_secs(2));
    let (sent, mut read) = (world.ends[0].sent, 0);
    while read < 200_000 {
        let now = world.now;
        let mut to = [0; 100];
        let len = world.tcp(1).read(&mut to, now);
        world.ends[1].heard.extend_from_slice(&to[..len]);
        read += len;
        world.run_for(MS);
    }
    let segments = world.ends[0].sent - sent;
    assert!(segments < 300, "{segments} segments for 200,000 bytes");
}

#[test]
fn a_lone_segment_is_acknowledged_late_and_a_pair_at_once() {
    let mut world = World::connected(1, CLEAN);
    // What is quick at the beginning is over.
    world.say(0, 200_000);
    world.run_until(World::all_heard);
    world.run_for(Duration::from_secs(1));
    let acks = |world: &World| world.ends[1].sent;
    let before = acks(&world);
    world.say(0, 100);
    world.run_for(40 * MS);
    assert_eq!(acks(&world), before);
    world.run_for(20 * MS);
    assert_eq!(acks(&world), before + 1);
    world.say(0, 2736);
    world.run_for(12 * MS);
    assert_eq!(acks(&world), before + 2);
}

#[test]
fn short_writes_wait_only_where_that_is_asked_for() {
    for nagle in [false, true] {
        let mut world = World::connected(1, CLEAN);
        world.tcp(0).set_nagle(nagle);
        let sent = world.ends[0].sent;
        for _ in 0..5 {
            world.say(0, 10);
            world.run_for(MS);
        }
        assert_eq!(world.ends[0].sent - sent, if nagle { 1 } else { 5 });
        world.run_until(World::all_heard);
    }
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    let mut world = World::connected(1, CLEAN);
    world.say(0, 3_000_000);
    world.say(1, 3_000_000);
    world.run_until(World::all_heard);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.budget.used(), 0);
    assert!(size_of::<crate::tcp::Connection>() < 1024);
}

#[test]
fn short_memory_slows_streams_and_stops_none() {
    let mut world = World::new(1, Link { loss: 100, ..CLEAN });
    world.budget = Budget::new(400_000);
    world.dial(0);
    world.say(0, 3_000_000);
    world.say(1, 3_000_000);
    let budget = world.budget.clone();
    world.run_until(|world| {
        assert!(budget.used() <= 400_000);
        world.all_heard()
    });
}

/// The sender has all its acknowledgements and may not send: only a timer goes on.
#[test]
fn a_sender_without_a_window_has_a_timer_though_nothing_is_on_its_way() {
    for say in [70_000, 200_000] {
        let mut world = World::connected(1, CLEAN);
        world.ends[1].reads = false;
        world.say(0, say);
        world.run_for(Duration::from_secs(1));
        assert!(world.tcp(0).poll_timeout().is_some());
        // The news of the window is lost.
        world.filter = Box::new(|from, _, _| from == 0);
        world.ends[1].reads = true;
        world.pump();
        world.filter = Box::new(|_, _, _| true);
        world.run_until(World::all_heard);
    }
}

#[test]
fn room_for_writes_is_what_a_write_takes_however_little_memory_is_left() {
    for limit in 0..40 {
        let mut world = World::connected(1, CLEAN);
        world.budget = Budget::new(limit * 10_000);
        world.ends = World::new(1, CLEAN).ends;
        world.dial(0);
        world.run_until(|world| world.both(crate::tcp::State::Established));
        world.filter = Box::new(|_, _, _| false);
        for piece in [1, 5000, 17_000, 100_000, 1_000_000] {
            let room = world.tcp(0).write_room();
            assert_eq!(world.tcp(0).write(&vec![0; piece]), Some(room.min(piece)));
            world.pump();
        }
    }
}
