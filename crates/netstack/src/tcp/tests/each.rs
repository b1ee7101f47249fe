//! Runs connections in which one segment is lost, duplicated or late, for each segment in turn. In
//! all cases both ends receive all data, close without failure and hold no memory afterwards.

use std::time::Duration;

use super::world::{CLEAN, Fault, Kind, MS, World};
use crate::tcp::State;

/// Delays: within a round trip, after some later segments; after an acknowledgement of later data;
/// after a timeout; and after a repeated SYN.
const LATE: [Duration; 4] = [MS, Duration::from_millis(25), Duration::from_millis(400), LONG];
const LONG: Duration = Duration::from_millis(1300);

/// A connection from the first SYN to the last acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    name: &'static str,
    begin: fn() -> World,
    /// Runs the connection until both ends are closed.
    go: fn(&mut World),
}

const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "the client closes first", begin: opened, go: |world| exchange(world, 0) },
    Scenario { name: "the server closes first", begin: opened, go: |world| exchange(world, 1) },
    Scenario { name: "simultaneous close", begin: opened, go: both_end },
    Scenario { name: "simultaneous open", begin: simultaneous_open, go: both_end },
    Scenario { name: "without data", begin: opened, go: silence },
    Scenario { name: "one end pauses reading", begin: opened, go: pause },
    Scenario { name: "the path MTU decreases", begin: opened, go: narrow },
];

fn opened() -> World {
    World::dialled(1, CLEAN)
}

fn simultaneous_open() -> World {
    let mut world = World::new(1, CLEAN);
    world.dial(0);
    world.dial(1);
    world
}

fn queue_data(world: &mut World) {
    world.queue_data(0, 40_000);
    world.queue_data(1, 9000);
}

/// Both ends send data. One end closes, and the other one after receiving FIN.
fn exchange(world: &mut World, first: usize) {
    queue_data(world);
    end(world, first);
}

fn end(world: &mut World, first: usize) {
    world.ends[first].ends = true;
    world.run_until(|world| world.state(1 - first) == State::CloseWait);
    world.ends[1 - first].ends = true;
}

fn both_end(world: &mut World) {
    queue_data(world);
    world.ends.iter_mut().for_each(|end| end.ends = true);
}

fn silence(world: &mut World) {
    world.run_until(|world| world.both(State::Established));
    end(world, 0);
}

/// A window closes, is probed, and opens.
fn pause(world: &mut World) {
    world.queue_data(0, 90_000);
    world.ends[1].reads = false;
    world.run_for(Duration::from_secs(4));
    world.ends[1].reads = true;
    world.run_until(World::all_received);
    end(world, 1);
}

/// Long segments are dropped, and a router reports that a little later.
fn narrow(world: &mut World) {
    queue_data(world);
    world.run_until(|world| world.ends[1].received.len() > 5000);
    world.filter = Box::new(|_, _, bytes| bytes.len() <= 1020);
    world.run_for(20 * MS);
    world.tcp(0).lower_path(1000);
    world.tcp(1).lower_path(1000);
    end(world, 0);
}

/// Runs a connection, optionally with a fault. Returns its duration and the number of segments of
/// each end.
fn run(scenario: Scenario, fault: Option<Fault>) -> (Duration, [usize; 2]) {
    let mut world = (scenario.begin)();
    world.fault = fault;
    let begin = world.now;
    (scenario.go)(&mut world);
    world.run_until(|world| {
        world.all_received()
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

/// Runs a connection once for each of its segments, with this fault.
fn each(scenario: Scenario, kind: Kind, check: impl Fn(Duration, Fault, Duration)) {
    let (clean, sent) = run(scenario, None);
    for from in [0, 1] {
        for number in 0..sent[from] {
            let fault = Fault { from, number, kind };
            let (took, _) = run(scenario, Some(fault));
            check(took, fault, clean);
        }
    }
}

/// A timeout costs at least 200 ms. A lost SYN costs one second, and so does its lost
/// acknowledgement if no data is sent. A lost window update costs at most the time for which the
/// window was closed.
#[test]
fn any_segment_of_a_connection_may_be_lost() {
    for scenario in SCENARIOS {
        each(scenario, Kind::Lost, |took, fault, clean| {
            let more = if fault.number < 2 { 1300 * MS } else { 300 * MS };
            assert!(
                took < clean + more.max(clean),
                "{}: {fault:?}: {took:?}, not {clean:?}",
                scenario.name
            );
        });
    }
}

#[test]
fn any_segment_of_a_connection_may_be_duplicated() {
    for scenario in SCENARIOS {
        each(scenario, Kind::Twice, |took, fault, clean| {
            assert!(took <= clean + 50 * MS, "{}: {fault:?}: {took:?}", scenario.name);
        });
    }
}

#[test]
fn any_segment_of_a_connection_may_be_late() {
    for (scenario, late) in
        SCENARIOS.into_iter().flat_map(|scenario| LATE.map(|late| (scenario, late)))
    {
        each(scenario, Kind::Late(late), |took, fault, clean| {
            let bound = clean + (late + 60 * MS).max(clean);
            assert!(took < bound, "{}: {fault:?}: {took:?}, not {clean:?}", scenario.name);
        });
    }
}
