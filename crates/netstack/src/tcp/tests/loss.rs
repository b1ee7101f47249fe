use std::time::Duration;

use super::world::{CLEAN, Link, MS, World};
use crate::tcp::{
    CongestionControl::{self, Bbr, Cubic},
    State,
};

/// The first end has sent a SYN, with this congestion control.
fn dialled(control: CongestionControl, seed: u64, link: Link) -> World {
    let mut world = World::new(seed, link);
    world.control = [control; 2];
    world.dial(0);
    world
}

/// Transfers 100 kB and closes both ends. Returns the duration and the number of segments of each
/// end.
fn transfer(mut world: World) -> (Duration, [usize; 2], World) {
    let begin = world.now;
    world.queue_data(0, 100_000);
    world.queue_data(1, 3000);
    world.ends.iter_mut().for_each(|end| end.ends = true);
    world.run_until(|world| {
        world.all_received()
            && world.ends.iter().all(|end| end.tcp.as_ref().is_some_and(|tcp| tcp.is_at_end()))
    });
    let sent = [world.ends[0].sent, world.ends[1].sent];
    (world.now.since(begin), sent, world)
}

/// A timeout costs at least 200 ms, and a lost SYN one second.
#[test]
fn the_loss_of_any_single_segment_costs_no_time_out() {
    for (control, from) in [(Bbr, 0), (Bbr, 1), (Cubic, 0), (Cubic, 1)] {
        let (clean, sent, _) = transfer(dialled(control, 1, CLEAN));
        for lost in 0..sent[from] {
            let mut world = dialled(control, 1, CLEAN);
            world.filter = Box::new(move |end, number, _| (end, number) != (from, lost));
            let (took, ..) = transfer(world);
            // The first segment of each end is a SYN. The last one, and a separate FIN, wait for a
            // probe, which waits for a delayed acknowledgement.
            let bound = if lost == 0 { 1200 * MS } else { 300 * MS };
            assert!(took < clean + bound, "segment {lost} of {from}: {took:?}, not {clean:?}");
        }
    }
}

#[test]
fn the_loss_of_any_two_segments_in_a_row_costs_at_most_one_time_out() {
    let (clean, sent, _) = transfer(World::dialled(1, CLEAN));
    for lost in 2..sent[0] {
        let mut world = World::dialled(1, CLEAN);
        world.filter =
            Box::new(move |end, number, _| end != 0 || number != lost && number != lost + 1);
        let (took, ..) = transfer(world);
        assert!(took < clean + 500 * MS, "segments from {lost}: {took:?}, not {clean:?}");
    }
}

#[test]
fn a_retransmission_that_is_lost_too_is_repeated_without_a_time_out() {
    let mut world = World::connected(1, CLEAN);
    let mut left = 2;
    let mut unlucky = None;
    world.filter = Box::new(move |end, number, bytes| {
        let seq = bytes[4..8].to_vec();
        if end == 0 && number == 20 {
            unlucky = Some(seq.clone());
        }
        let hit = end == 0 && unlucky.as_ref() == Some(&seq) && left > 0;
        left -= i32::from(hit);
        !hit
    });
    world.queue_data(0, 100_000);
    let begin = world.now;
    world.run_until(World::all_received);
    assert!(world.now.since(begin) < 200 * MS, "{:?}", world.now.since(begin));
}

#[test]
fn the_stream_continues_after_an_outage() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 200_000);
    world.run_for(15 * MS);
    world.filter = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(20));
    world.filter = Box::new(|_, _, _| true);
    let sent = world.ends[0].sent;
    world.run_until(World::all_received);
    assert!(world.ends[0].sent - sent < 170, "received data is not retransmitted");
}

#[test]
fn a_lost_peer_fails_after_a_quarter_of_an_hour() {
    let mut world = World::connected(1, CLEAN);
    world.filter = Box::new(|_, _, _| false);
    world.queue_data(0, 10);
    let begin = world.now;
    world.run_until(|world| world.state(0) == State::Closed);
    let took = world.now.since(begin).as_secs();
    assert!((600..1500).contains(&took), "{took} s");
}

#[test]
fn duplicates_and_reordering_are_not_treated_as_loss() {
    let link = Link { reordering: 300, duplication: 300, late: 3 * MS, ..CLEAN };
    for control in [Bbr, Cubic] {
        let mut world = World::with(control, 5, link);
        world.queue_data(0, 3_000_000);
        world.run_until(World::all_received);
        let needless = world.ends[0].sent_bytes - 3_000_000;
        assert!(needless < 200_000, "{control:?}: {needless} bytes were sent twice");
    }
}

#[test]
fn no_byte_is_lost_despite_heavy_loss_reordering_and_duplicates() {
    for seed in 0..40 {
        let link = Link { loss: 500, reordering: 1000, duplication: 500, late: 17 * MS, ..CLEAN };
        let mut world = dialled(if seed % 4 < 2 { Bbr } else { Cubic }, seed, link);
        if seed % 2 == 1 {
            world.most = 1400;
        }
        world.queue_data(0, 300_000);
        world.queue_data(1, 200_000);
        world.ends.iter_mut().for_each(|end| end.ends = true);
        world.run_until(|world| world.all_received());
    }
}

/// Without selective acknowledgements, as with a very old peer.
#[test]
fn a_peer_without_selective_acknowledgements_recovers_without_a_time_out() {
    let mut world = World::dialled(1, CLEAN);
    world.filter = Box::new(|from, number, bytes| {
        if from == 0 && number == 0 {
            // Replaces the "SACK permitted" option by two NOPs.
            let at = bytes.windows(2).rposition(|pair| pair == [4, 2]).unwrap();
            bytes[at..at + 2].copy_from_slice(&[1, 1]);
        }
        from != 0 || number != 40
    });
    let begin = world.now;
    world.queue_data(0, 200_000);
    world.run_until(World::all_received);
    assert!(!world.tcp(0).negotiated.selective);
    assert!(world.now.since(begin) < 350 * MS, "{:?}", world.now.since(begin));
}

/// RFC 2018 section 8: selectively acknowledged data may be dropped.
#[test]
fn a_reneging_receiver_gets_all_data_again() {
    let mut world = World::connected(1, CLEAN);
    world.filter = Box::new(|_, _, _| false);
    world.queue_data(0, 10_000);
    world.pump();
    let (una, next) = (world.tcp(0).tx.una(), world.tcp(0).tx.next());
    world.forge(0, |header| {
        header.window = u16::MAX;
        header.options.sack = [(una + 1368, next)].into_iter().collect();
    });
    world.filter = Box::new(|_, _, _| true);
    let begin = world.now;
    world.run_until(|world| world.all_received());
    assert!(world.now.since(begin) < Duration::from_secs(3), "{:?}", world.now.since(begin));
}

#[test]
fn a_connection_fails_once() {
    let mut world = World::connected(1, CLEAN);
    world.filter = Box::new(|_, _, _| false);
    world.queue_data(0, 10);
    world.run_until(|world| world.ends[0].failure.is_some());
    let most = world.most;
    assert!(!world.tcp(0).wants_transmit(most));
    world.run_for(Duration::from_secs(3600));
    assert_eq!(world.tcp(0).poll_timeout(), None);
    assert_eq!(world.tcp(0).take_failure(), None);
}
