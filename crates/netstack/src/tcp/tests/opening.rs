use std::time::Duration;

use super::world::{CLEAN, MS, World};
use crate::tcp::{Failure, Header, State, flags};

#[test]
fn a_connection_is_established_after_one_and_a_half_round_trips() {
    let mut world = World::dialled(1, CLEAN);
    let begin = world.now;
    world.run_until(|world| world.both(State::Established));
    assert_eq!(world.now.since(begin), 30 * MS);
    for end in [0, 1] {
        let negotiated = world.tcp(end).negotiated;
        assert!(negotiated.selective && negotiated.timestamps && negotiated.scales);
        assert_eq!(negotiated.scale, 9, "16 MiB need nine bits");
    }
}

#[test]
fn options_that_a_peer_does_not_offer_are_not_used() {
    let mut world = World::dialled(1, CLEAN);
    world.filter = Box::new(|_, number, bytes| {
        let (mut header, len) = Header::parse(bytes).unwrap();
        if number == 0 {
            header.options = Default::default();
            let mut plain = vec![0; header.len()];
            header.write(&mut plain);
            plain.extend_from_slice(&bytes[len..]);
            *bytes = plain;
        } else {
            assert_eq!(header.options, Default::default());
            assert!(bytes.len() <= 20 + 536, "the default MSS");
        }
        true
    });
    world.queue_data(0, 300_000);
    world.queue_data(1, 100_000);
    world.run_until(World::all_received);
}

#[test]
fn a_syn_is_repeated_for_two_minutes() {
    let mut world = World::dialled(1, CLEAN);
    world.filter = Box::new(|_, _, _| false);
    let begin = world.now;
    world.run_until(|world| world.ends[0].failure.is_some());
    assert_eq!(world.ends[0].failure, Some(Failure::TimedOut));
    assert_eq!(world.ends[0].sent, 7);
    assert_eq!(world.now.since(begin), Duration::from_secs(127));
}

#[test]
fn a_handshake_survives_the_loss_of_any_of_its_segments() {
    for lost in [(0, 0), (1, 0), (0, 1)] {
        let mut world = World::dialled(1, CLEAN);
        world.filter = Box::new(move |from, number, _| (from, number) != lost);
        world.queue_data(0, 10);
        world.queue_data(1, 10);
        world.run_until(World::all_received);
        assert!(world.both(State::Established), "without {lost:?}");
    }
}

#[test]
fn simultaneous_open_is_supported() {
    let mut world = World::new(1, CLEAN);
    world.dial(0);
    world.dial(1);
    world.queue_data(0, 100_000);
    world.queue_data(1, 100_000);
    world.run_until(World::all_received);
    assert!(world.both(State::Established));
}

#[test]
fn a_refused_connection_fails_at_once() {
    let mut world = World::dialled(1, CLEAN);
    world.pump();
    let syn = world.network.take_in_flight().remove(0);
    let (syn, _) = Header::parse(&syn).unwrap();
    let mut reset = syn.clone();
    reset.flags = flags::RST | flags::ACK;
    reset.ack = syn.seq + 2;
    take(&mut world, &reset);
    assert_eq!(world.state(0), State::SynSent, "it acknowledges another sequence number");
    reset.ack = syn.seq + 1;
    take(&mut world, &reset);
    assert_eq!(world.tcp(0).take_failure(), Some(Failure::Refused));
    assert_eq!(world.state(0), State::Closed);
}

fn take(world: &mut World, header: &Header) {
    let payload = crate::tcp::Payload::Whole(&[]);
    let segment = crate::tcp::Segment { header: header.clone(), payload };
    let now = world.now;
    let _ = world.tcp(0).handle_segment(now, &segment);
}

#[test]
fn each_end_respects_the_mss_of_the_other() {
    let mut world = World::new(1, CLEAN);
    world.set_mss([1380, 500]);
    world.dial(0);
    world.queue_data(0, 100_000);
    world.queue_data(1, 100_000);
    // The world checks the length of each segment.
    world.run_until(World::all_received);
    assert_eq!(world.tcp(0).segment_limit(), 500);
}
