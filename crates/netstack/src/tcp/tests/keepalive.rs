use std::time::Duration;

use super::world::{CLEAN, MS, World};
use crate::tcp::{Failure, Header, Keepalive, State};

const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(600), interval: Duration::from_secs(60), probes: 5 };

/// Both ends are connected, have spoken, and are silent; the first asks.
fn silent() -> World {
    let mut world = World::connected(1, CLEAN);
    world.say(0, 5000);
    world.say(1, 5000);
    world.run_until(World::all_heard);
    world.run_for(Duration::from_secs(1));
    let now = world.now;
    world.tcp(0).set_keepalive(Some(KEEPALIVE), now);
    world
}

#[test]
fn nobody_is_asked_unless_that_is_wanted() {
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
fn a_peer_that_is_there_is_asked_once_in_each_silence_and_keeps_its_connection() {
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
    let asked = world.ends[0].sent - sent[0];
    // A day of 600 s, each with 20 ms until the answer.
    assert_eq!((asked, world.ends[1].sent - sent[1]), (143, 143));
    assert!(world.both(State::Established));
    // Both still speak.
    world.filter = Box::new(|_, _, _| true);
    world.say(0, 100_000);
    world.say(1, 100_000);
    world.run_until(World::all_heard);
}

#[test]
fn a_peer_that_vanished_is_gone_after_its_last_question_and_told_so_if_it_comes_back() {
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
        // Four of five questions are lost.
        from == 1 || number % 5 == 0
    });
    world.run_for(Duration::from_secs(86_400));
    assert!(world.both(State::Established));
}

#[test]
fn what_waits_for_its_acknowledgement_is_repeated_and_nobody_is_asked() {
    let mut world = silent();
    world.filter = Box::new(|from, _, bytes| {
        let (_, len) = Header::parse(bytes).unwrap();
        assert!(from == 1 || bytes.len() > len, "a question beside data");
        false
    });
    world.say(0, 100);
    world.run_for(Duration::from_secs(800));
    assert_eq!(world.state(0), State::Established);
    world.run_for(Duration::from_secs(800));
    assert_eq!(world.ends[0].failure, Some(Failure::TimedOut), "a quarter of an hour of silence");
}

#[test]
fn a_half_that_waits_for_the_other_asks_too() {
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
