use std::time::Duration;

use super::world::{CLEAN, Link, MS, World};
use crate::budget::Budget;

#[test]
fn a_pausing_reader_stops_the_writer_until_a_probe_finds_the_window_open() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 1_000_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(60));
    let waiting = world.tcp(1).readable();
    assert!((60_000..140_000).contains(&waiting), "{waiting} bytes");
    let probes = world.ends[0].sent;
    world.run_for(Duration::from_secs(60));
    assert!((1..20).contains(&(world.ends[0].sent - probes)), "occasional probes");
    // The window update is lost, so only a probe detects the window.
    world.filter = Box::new(|from, _, _| from == 0);
    world.ends[1].reads = true;
    world.pump();
    world.run_for(MS);
    world.filter = Box::new(|_, _, _| true);
    world.run_until(World::all_received);
}

#[test]
fn a_closed_window_is_tolerated_while_the_peer_answers() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 1_000_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(6000));
    assert_eq!(world.ends[0].failure, None);
    world.ends[1].reads = true;
    world.run_until(World::all_received);
}

/// RFC 9293 section 3.8.6 requires senders to handle this.
#[test]
fn a_window_below_the_data_in_flight_stops_the_stream_without_loss() {
    for window in [0, 1, 9] {
        let mut world = World::connected(1, CLEAN);
        world.queue_data(0, 3_000_000);
        world.run_until(|world| world.ends[1].received.len() > 50_000);
        world.filter = Box::new(move |from, _, bytes| {
            if from == 1 {
                bytes[14..16].copy_from_slice(&u16::to_be_bytes(window));
            }
            true
        });
        world.run_for(Duration::from_secs(1));
        let sent = world.ends[0].sent_bytes;
        assert!(window > 0 || sent < 3_000_000, "more data is waiting");
        world.run_for(Duration::from_secs(60));
        let more = world.ends[0].sent_bytes - sent;
        assert!(window > 0 || more == 0, "{more} bytes into a closed window");
        assert_eq!(world.ends[0].failure, None);
        world.filter = Box::new(|_, _, _| true);
        world.run_until(World::all_received);
    }
}

#[test]
fn a_slow_reader_does_not_cause_small_segments() {
    let mut world = World::connected(1, CLEAN);
    world.ends[1].reads = false;
    world.queue_data(0, 500_000);
    world.run_for(Duration::from_secs(2));
    let (sent, mut read) = (world.ends[0].sent, 0);
    while read < 200_000 {
        let now = world.now;
        let mut to = [0; 100];
        let len = world.tcp(1).read(&mut to, now);
        world.ends[1].received.extend_from_slice(&to[..len]);
        read += len;
        world.run_for(MS);
    }
    let segments = world.ends[0].sent - sent;
    assert!(segments < 300, "{segments} segments for 200,000 bytes");
}

#[test]
fn single_segments_are_acknowledged_late_and_pairs_at_once() {
    let mut world = World::connected(1, CLEAN);
    // The phase of immediate acknowledgements is over.
    world.queue_data(0, 200_000);
    world.run_until(World::all_received);
    world.run_for(Duration::from_secs(1));
    let acks = |world: &World| world.ends[1].sent;
    let before = acks(&world);
    world.queue_data(0, 100);
    world.run_for(40 * MS);
    assert_eq!(acks(&world), before);
    world.run_for(20 * MS);
    assert_eq!(acks(&world), before + 1);
    world.queue_data(0, 2736);
    world.run_for(12 * MS);
    assert_eq!(acks(&world), before + 2);
}

#[test]
fn short_writes_wait_only_with_nagle() {
    for nagle in [false, true] {
        let mut world = World::connected(1, CLEAN);
        world.tcp(0).set_nagle(nagle);
        let sent = world.ends[0].sent;
        for _ in 0..5 {
            world.queue_data(0, 10);
            world.run_for(MS);
        }
        assert_eq!(world.ends[0].sent - sent, if nagle { 1 } else { 5 });
        world.run_until(World::all_received);
    }
}

#[test]
fn an_idle_connection_frees_its_buffers() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 3_000_000);
    world.queue_data(1, 3_000_000);
    world.run_until(World::all_received);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.budget.used(), 0);
    assert!(size_of::<crate::tcp::Connection>() < 1024);
}

#[test]
fn short_memory_slows_streams_but_stops_none() {
    let mut world = World::new(1, Link { loss: 100, ..CLEAN });
    world.budget = Budget::new(400_000);
    world.dial(0);
    world.queue_data(0, 3_000_000);
    world.queue_data(1, 3_000_000);
    let budget = world.budget.clone();
    world.run_until(|world| {
        assert!(budget.used() <= 400_000);
        world.all_received()
    });
}

/// All data is acknowledged and the window is closed, so only a timer can continue.
#[test]
fn a_sender_with_a_closed_window_has_a_timer_without_data_in_flight() {
    for say in [70_000, 200_000] {
        let mut world = World::connected(1, CLEAN);
        world.ends[1].reads = false;
        world.queue_data(0, say);
        world.run_for(Duration::from_secs(1));
        assert!(world.tcp(0).poll_timeout().is_some());
        // The window update is lost.
        world.filter = Box::new(|from, _, _| from == 0);
        world.ends[1].reads = true;
        world.pump();
        world.filter = Box::new(|_, _, _| true);
        world.run_until(World::all_received);
    }
}

#[test]
fn a_write_accepts_the_announced_room_also_with_little_memory() {
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
