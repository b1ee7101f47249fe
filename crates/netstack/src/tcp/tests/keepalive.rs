use std::time::Duration;

use super::world::{CLEAN, MS, World};
use crate::tcp::{Failure, Header, Keepalive, State};

const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(600), interval: Duration::from_secs(60), probes: 5 };

/// Both ends have exchanged data and are idle. The first one has keepalive probes.
fn silent() -> World {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 5000);
    world.queue_data(1, 5000);
    world.run_until(World::all_received);
    world.run_for(Duration::from_secs(1));
    let now = world.now;
    world.tcp(0).set_keepalive(Some(KEEPALIVE), now);
    world
}

#[test]
fn without_keepalive_no_probe_is_sent() {
    let mut world = silent();
    let now = world.now;
    world.tcp(0).set_keepalive(None, now);
    let sent = [world.ends[0].sent, world.ends[1].sent];
    assert_eq!(world.tcp(0).poll_timeout(), None);
    world.filter = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(30 * 86_400));
    assert_eq!([world.ends[0].sent, world.ends[1].sent], sent);
    assert!(world.both(State::Established));
}

#[test]
fn a_reachable_peer_is_probed_once_per_idle_time_and_stays_connected() {
    let mut world = silent();
    let sent = [world.ends[0].sent, world.ends[1].sent];
    let now = world.now;
    let next = world.tcp(0).header(now, 0).seq;
    world.filter = Box::new(move |from, _, bytes| {
        let (header, len) = Header::parse(bytes).unwrap();
        assert!(from == 1 || header.seq == next - 1 && bytes.len() == len, "{header:?}");
        true
    });
    world.run_for(Duration::from_secs(599));
    assert_eq!([world.ends[0].sent, world.ends[1].sent], sent);
    world.run_for(Duration::from_secs(86_400 - 599));
    let probes = world.ends[0].sent - sent[0];
    // A day in periods of 600 s plus 20 ms until the answer.
    assert_eq!((probes, world.ends[1].sent - sent[1]), (143, 143));
    assert!(world.both(State::Established));
    // Both ends still exchange data.
    world.filter = Box::new(|_, _, _| true);
    world.queue_data(0, 100_000);
    world.queue_data(1, 100_000);
    world.run_until(World::all_received);
}

#[test]
fn an_unreachable_peer_fails_after_the_last_probe_and_is_reset_on_return() {
    let mut world = silent();
    let sent = world.ends[0].sent;
    world.filter = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(600 + 5 * 60 - 1));
    assert_eq!((world.state(0), world.ends[0].sent - sent), (State::Established, 5));
    world.filter = Box::new(|_, _, _| true);
    world.run_for(Duration::from_secs(2));
    assert_eq!((world.state(0), world.ends[0].failure), (State::Closed, Some(Failure::TimedOut)));
    assert_eq!(world.ends[1].failure, Some(Failure::Reset));
    assert_eq!((world.budget.used(), world.tcp(0).poll_timeout()), (0, None));
}

#[test]
fn one_answer_in_time_is_enough() {
    let mut world = silent();
    let mut number = 0;
    world.filter = Box::new(move |from, _, _| {
        number += usize::from(from == 0);
        // Four of five probes are lost.
        from == 1 || number % 5 == 0
    });
    world.run_for(Duration::from_secs(86_400));
    assert!(world.both(State::Established));
}

#[test]
fn unacknowledged_data_is_retransmitted_and_not_probed() {
    let mut world = silent();
    world.filter = Box::new(|from, _, bytes| {
        let (_, len) = Header::parse(bytes).unwrap();
        assert!(from == 1 || bytes.len() > len, "a probe while data is in flight");
        false
    });
    world.queue_data(0, 100);
    world.run_for(Duration::from_secs(800));
    assert_eq!(world.state(0), State::Established);
    world.run_for(Duration::from_secs(800));
    assert_eq!(world.ends[0].failure, Some(Failure::TimedOut), "a quarter of an hour of silence");
}

#[test]
fn a_half_closed_connection_is_probed_too() {
    for end in [0, 1] {
        let mut world = silent();
        world.ends[end].ends = true;
        world.run_for(Duration::from_secs(1));
        let half_closed = [State::FinWait2, State::CloseWait];
        assert_eq!(world.state(0), half_closed[end]);
        world.filter = Box::new(|_, _, _| false);
        world.run_for(Duration::from_secs(900) + 100 * MS);
        assert_eq!(world.ends[0].failure, Some(Failure::TimedOut));
    }
}
