//! Each segment of a whole life in turn is lost, comes twice, comes late: whatever befalls
//! one of them, both ends hear everything, part in peace, and hold nothing afterwards.

use std::time::Duration;

use super::world::{CLEAN, Kind, MS, Mishap, World};
use crate::tcp::State;

/// Within a round trip, behind some others; behind an acknowledgement of what came later;
/// behind a time-out; and behind a repeated SYN.
const LATE: [Duration; 4] = [MS, Duration::from_millis(25), Duration::from_millis(400), LONG];
const LONG: Duration = Duration::from_millis(1300);

/// A life from the first SYN to the last acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Life {
    name: &'static str,
    begin: fn() -> World,
    /// What becomes of it until both halves ended.
    go: fn(&mut World),
}

const LIVES: [Life; 7] = [
    Life { name: "who asked ends first", begin: asked, go: |world| talk(world, 0) },
    Life { name: "who answered ends first", begin: asked, go: |world| talk(world, 1) },
    Life { name: "both end at once", begin: asked, go: both_end },
    Life { name: "both ask at once", begin: both_ask, go: both_end },
    Life { name: "nobody says anything", begin: asked, go: silence },
    Life { name: "one does not read for a while", begin: asked, go: pause },
    Life { name: "the path becomes narrow", begin: asked, go: narrow },
];

fn asked() -> World {
    World::dialled(1, CLEAN)
}

fn both_ask() -> World {
    let mut world = World::new(1, CLEAN);
    world.dial(0);
    world.dial(1);
    world
}

fn speak(world: &mut World) {
    world.say(0, 40_000);
    world.say(1, 9000);
}

/// One ends its half, and the other when it has heard so.
fn talk(world: &mut World, first: usize) {
    speak(world);
    end(world, first);
}

fn end(world: &mut World, first: usize) {
    world.ends[first].ends = true;
    world.run_until(|world| world.state(1 - first) == State::CloseWait);
    world.ends[1 - first].ends = true;
}

fn both_end(world: &mut World) {
    speak(world);
    world.ends.iter_mut().for_each(|end| end.ends = true);
}

fn silence(world: &mut World) {
    world.run_until(|world| world.both(State::Established));
    end(world, 0);
}

/// A window closes, is asked after, and opens.
fn pause(world: &mut World) {
    world.say(0, 90_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(4));
    world.ends[1].reads = true;
    world.run_until(World::all_heard);
    end(world, 1);
}

/// Long segments are dropped, and a router says so a little later.
fn narrow(world: &mut World) {
    speak(world);
    world.run_until(|world| world.ends[1].heard.len() > 5000);
    world.filter = Box::new(|_, _, bytes| bytes.len() <= 1020);
    world.run_for(20 * MS);
    world.tcp(0).lower_path(1000);
    world.tcp(1).lower_path(1000);
    end(world, 0);
}

/// Lives it, with a mishap or without; how long it took, and how many segments each sent.
fn live(life: Life, mishap: Option<Mishap>) -> (Duration, [usize; 2]) {
    let mut world = (life.begin)();
    world.mishap = mishap;
    let begin = world.now;
    (life.go)(&mut world);
    world.run_until(|world| {
        world.all_heard()
            && [0, 1]
                .into_iter()
                .all(|end| matches!(world.state(end), State::TimeWait | State::Closed))
    });
    let (took, sent) = (world.now.since(begin), [0, 1].map(|end| world.ends[end].sent));
    world.run_for(Duration::from_secs(130));
    for end in [0, 1] {
        assert_eq!(world.ends[end].failure, None);
        assert!(world.tcp(end).is_over(), "{:?}", world.state(end));
    }
    assert_eq!(world.budget.used(), 0);
    (took, sent)
}

/// Has each segment of it in turn meet that.
fn each(life: Life, kind: Kind, check: impl Fn(Duration, Mishap, Duration)) {
    let (clean, sent) = live(life, None);
    for from in [0, 1] {
        for number in 0..sent[from] {
            let mishap = Mishap { from, number, kind };
            let (took, _) = live(life, Some(mishap));
            check(took, mishap, clean);
        }
    }
}

/// A time-out costs at least 200 ms; a SYN that is lost a second, and so does its
/// acknowledgement where nobody says anything; the news of a window at most as long again
/// as it was closed.
#[test]
fn any_segment_of_a_life_may_be_lost() {
    for life in LIVES {
        each(life, Kind::Lost, |took, mishap, clean| {
            let more = if mishap.number < 2 { 1300 * MS } else { 300 * MS };
            assert!(
                took < clean + more.max(clean),
                "{}: {mishap:?}: {took:?}, not {clean:?}",
                life.name
            );
        });
    }
}

#[test]
fn any_segment_of_a_life_may_come_twice() {
    for life in LIVES {
        each(life, Kind::Twice, |took, mishap, clean| {
            assert!(took <= clean + 50 * MS, "{}: {mishap:?}: {took:?}", life.name);
        });
    }
}

#[test]
fn any_segment_of_a_life_may_be_late() {
    for (life, late) in LIVES.into_iter().flat_map(|life| LATE.map(|late| (life, late))) {
        each(life, Kind::Late(late), |took, mishap, clean| {
            let bound = clean + (late + 60 * MS).max(clean);
            assert!(took < bound, "{}: {mishap:?}: {took:?}, not {clean:?}", life.name);
        });
    }
}
