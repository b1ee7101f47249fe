//! Sessions that are renewed by age.

use std::thread;
use std::time::Duration;

use netns::{
    Capture, Direction, Family, Introduction, Message, PORT, Pace, Pinging, Stream, announce,
};

use super::rig::{PATIENCE, Rig, Tunnel, socket};

/// Duration of the traffic: a session is renewed after 120 s (paper 6.1).
const FLOW: Duration = Duration::from_secs(150);

#[test]
#[ignore = "make kernel-test"]
fn linerate_renews_a_session_that_it_started_without_loss() {
    renews(false);
}

#[test]
#[ignore = "make kernel-test"]
fn the_kernel_renews_a_session_that_it_started_without_loss() {
    renews(true);
}

fn renews(by_kernel: bool) {
    let rig = Rig::boot();
    let capture = Capture::start(&rig.left, "eth0");
    let introduction =
        Introduction { left_only: !by_kernel, right_only: by_kernel, ..Introduction::default() };
    let tunnel = Tunnel::start(&rig, introduction);
    tunnel.opens(Family::V4, by_kernel);
    let seen = || [tunnel.state_at_linerate(), tunnel.state_at_kernel()];
    let first = seen().map(|status| status.latest_handshake);

    let pace = Pace { piece: 2000, rest: Duration::from_millis(100), bytes: None };
    let there = Stream::start(&rig.left, &rig.right, socket("10.4.0.2", 7000), pace);
    let back = Stream::start(&rig.right, &rig.left, socket("fd09::1", 7001), pace);
    let pings = Pinging::start(&rig.left, "rekey", "-i 0.2 10.4.0.2");
    thread::sleep(FLOW);
    pings.wait_for_replies(5, PATIENCE);
    let pings = pings.finish();
    // The last one may be in flight.
    assert!(pings.sent - pings.received <= 1, "{}", pings.text);
    for stream in [there, back] {
        let carried = stream.finish();
        assert_eq!(carried.received, carried.sent, "{carried:?}");
    }

    let last = seen().map(|status| status.latest_handshake);
    for (first, last) in first.into_iter().zip(last) {
        assert!(last >= first + 115, "handshakes at {first} and {last}");
    }
    let messages = Message::all(&capture.finish(), PORT);
    let initiations =
        |direction| messages.iter().filter(|m| m.direction == direction && m.kind == 1).count();
    let (starts, other) =
        if by_kernel { (Direction::In, Direction::Out) } else { (Direction::Out, Direction::In) };
    let counts = (initiations(starts), initiations(other));
    announce(&format!(
        "KERNEL rekey: {counts:?} initiations of either end in {FLOW:?}, {} pings, {} answers",
        pings.sent, pings.received
    ));
    assert!(counts.0 >= 2 && counts.1 == 0, "{counts:?}");
}
