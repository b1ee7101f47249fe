//! One turn: fresh hosts, one contender, each selected test once.
//!
//! ```text
//!   left                                               right
//!   wg0  10.9.0.1   . . . . . . tunnel . . . . . . .   wg0  10.9.0.2
//!   eth0 10.1.0.1  ------------ cable --------------   eth0 10.1.0.2
//! ```
//!
//! Forth and up are from left to right.

mod connections;
mod far;
mod forward;
mod generator;
mod handshakes;
mod jumbo;
mod load;
mod nat;
mod peers;
mod ping;
mod proxy;
mod quic;
mod server;
mod tailnet;
mod tailscaled;
mod tcp;
mod test;
mod topology;
mod udp;
mod vxlan;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use netns::{Family, Host, INTERFACE};

use self::generator::{Server, generator};
pub use self::test::{Plan, Test};
use self::topology::{EmulatedLink, End, Ends};
use crate::contender::Contender;
use crate::flame::{Flame, Profiler};
use crate::measure::{
    LINK_LOST, LINK_QUEUE, LINK_REFUSED, MEMORY_END, MEMORY_END_AFTER, MEMORY_END_PSS, Measure,
    OTHERS, QUIC_TLS_UP, QUIC_UP,
};
use crate::readings::Readings;
use netns::{Processes, Watch};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Name of the readings after all tests that share their hosts.
const AFTER_ALL: &str = "after all tests";

/// A running turn.
struct Turn<'a> {
    ends: Ends,
    /// The memory of both daemons, if there are daemons.
    memory: Option<Watch>,
    /// The ends of the traffic, and the server's address for the client.
    client: Host,
    server: Host,
    target: String,
    plan: &'a Plan,
    readings: &'a RefCell<Readings>,
    notify: &'a dyn Fn(News<'_>),
}

/// Events of a running turn.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A test starts.
    Test(Test),
    /// A figure was measured.
    Figure(&'a Measure, f64),
}

/// Runs a turn of one contender. A failed test is recorded, after the rig has printed the reason,
/// and the other tests still run.
pub fn run(contender: &Contender, plan: &Plan, notify: &dyn Fn(News<'_>)) -> Readings {
    let readings = RefCell::new(Readings::new(plan.only));
    let before = if plan.is_brief { 0.0 } else { load::sample() };
    let mut tests = plan.tests.clone();
    tests.retain(|test| match test.reason_to_skip(contender, plan.link.is_some()) {
        Some(reason) => {
            readings.borrow_mut().push_skipped(test.name(), reason);
            false
        }
        None => true,
    });
    let (alone, shared): (Vec<Test>, Vec<Test>) =
        tests.into_iter().partition(|test| test.has_own_hosts());
    run_shared(contender, plan, &shared, &readings, notify);
    for test in alone {
        notify(News::Test(test));
        let far = Plan { link: Some(String::new()), ..plan.clone() };
        let plan = if test == Test::Far { &far } else { plan };
        attempt(&readings, test.name(), || match test {
            Test::Proxy => proxy::run(contender, plan, &readings, notify),
            Test::Nat => nat::run(contender, plan, &readings, notify),
            Test::Tailnet => tailnet::run(contender, plan, &readings, notify),
            Test::Server => server::run(contender, plan, &readings, notify),
            Test::ServerMany => server::run_many(plan, &readings, notify),
            test => {
                let mut turn = Turn::start(contender, plan, &readings, notify);
                turn.test(test);
                turn.note_link();
            }
        });
    }
    let mut readings = readings.into_inner();
    if !plan.is_brief {
        let others = before.max(load::sample());
        notify(News::Figure(&OTHERS, others));
        readings.push(&OTHERS, others);
    }
    readings
}

/// Runs the tests that share their hosts. After a failed test the rest runs on fresh hosts.
fn run_shared(
    contender: &Contender,
    plan: &Plan,
    tests: &[Test],
    readings: &RefCell<Readings>,
    notify: &dyn Fn(News<'_>),
) {
    let mut turn = None;
    let mut is_whole = true;
    for test in tests {
        notify(News::Test(*test));
        is_whole &= attempt(readings, test.name(), || {
            let under_way = turn.take();
            let mut under_way =
                under_way.unwrap_or_else(|| Turn::start(contender, plan, readings, notify));
            under_way.test(*test);
            turn = Some(under_way);
        });
    }
    let Some(mut turn) = turn else { return };
    attempt(readings, AFTER_ALL, || {
        turn.note_link();
        turn.ends.assert_direct();
        // Only for hosts that ran all tests.
        if is_whole {
            turn.note_memory([&MEMORY_END, &MEMORY_END_AFTER, &MEMORY_END_PSS]);
        }
    });
}

/// Runs a test. The rig panics on a failure and cleans up. Returns whether the test succeeded.
fn attempt(readings: &RefCell<Readings>, test: &'static str, run: impl FnOnce()) -> bool {
    readings.borrow_mut().begin(test);
    let is_well = catch_unwind(AssertUnwindSafe(run)).is_ok();
    let mut readings = readings.borrow_mut();
    if is_well {
        readings.finish();
    } else {
        readings.fail();
    }
    is_well
}

/// Runs one test of a contender with a profiler at both ends. TCP and QUIC only run from left to
/// right, so that one end sends and the other receives.
///
/// # Panics
/// As [`run`].
pub fn profile(contender: &Contender, plan: &Plan, test: Test) -> Result<Vec<Flame>, String> {
    if test.has_own_ends() {
        return Err("the test has no pair of daemons".to_owned());
    }
    let (readings, notify) = (RefCell::default(), |_: News<'_>| ());
    let mut turn = Turn::start(contender, plan, &readings, &notify);
    let Ends { left, right, .. } = &turn.ends;
    let mut profilers = Vec::new();
    for (end, name) in [(left, "left"), (right, "right")] {
        let daemon = end.daemon.as_ref().ok_or("the contender has no daemon")?;
        profilers.push((Profiler::start(&end.host, daemon.pid())?, name));
    }
    match test {
        Test::Tcp => drop(turn.iperf("").run()),
        Test::Quic => turn.quic_way(&QUIC_UP, "up", "plain"),
        Test::QuicTls => turn.quic_way(&QUIC_TLS_UP, "up", "tls"),
        other => turn.test(other),
    }
    let name = |end| format!("{}, {}, {end} end", contender.name, test.name());
    let drawn = profilers.into_iter().map(|(one, end)| one.finish(name(end), end));
    // An idle end lacks samples: in the test of handshakes only the hub has.
    let (flames, idle): (Vec<_>, Vec<_>) = drawn.partition(Result::is_ok);
    match idle.into_iter().next() {
        Some(error) if flames.is_empty() => error.map(|flame| vec![flame]),
        _ => flames.into_iter().collect(),
    }
}

impl<'a> Turn<'a> {
    fn start(
        contender: &Contender,
        plan: &'a Plan,
        readings: &'a RefCell<Readings>,
        notify: &'a dyn Fn(News<'_>),
    ) -> Self {
        let ends = Ends::start(contender, plan.link.as_deref());
        if let (Some(offloads), Some(program)) = (&contender.offloads, contender.program()) {
            for end in [&ends.left, &ends.right] {
                use_only(&end.host, &program.path, offloads);
            }
        }
        Turn::of(ends, plan, readings, notify)
    }

    /// A turn on ends that are already up.
    fn of(
        ends: Ends,
        plan: &'a Plan,
        readings: &'a RefCell<Readings>,
        notify: &'a dyn Fn(News<'_>),
    ) -> Self {
        let (client, server) = (ends.left.host.clone(), ends.right.host.clone());
        let target = ends.right.inner.of(Family::V4).to_owned();
        let daemons = [&ends.left, &ends.right].map(End::processes).into_iter().collect();
        let memory = Option::map(daemons, Watch::start);
        Turn { ends, memory, client, server, target, plan, readings, notify }
    }

    fn test(&mut self, test: Test) {
        match test {
            Test::Tcp => self.tcp(),
            Test::Ping => self.ping(),
            Test::Quic => self.quic(),
            Test::Udp => self.udp(),
            Test::Overload => self.overload(),
            Test::Plain => self.tcp_over_plain_link(),
            Test::Far => self.tcp_from_far(),
            Test::Connections => self.connections(),
            Test::QuicTls => self.quic_by_tls(),
            Test::Forward => self.forward(),
            Test::Vxlan => self.vxlan(),
            Test::Jumbo => self.jumbo(),
            Test::Peers => self.peers(),
            Test::Handshakes => self.handshakes(),
            // These tests start their own ends: see `run`.
            Test::Proxy | Test::Tailnet | Test::Nat | Test::Server | Test::ServerMany => {}
        }
    }

    fn note(&mut self, measure: &'static Measure, value: f64) {
        (self.notify)(News::Figure(measure, value));
        self.readings.borrow_mut().push(measure, value);
    }

    fn note_link(&mut self) {
        if let Some(link) = &mut self.ends.link {
            note_link(self.readings, link);
        }
    }

    /// Whether the plan has this measure.
    fn wants(&self, measure: &Measure) -> bool {
        self.plan.wants(measure)
    }

    /// Records a cost of both daemons, if there are daemons.
    fn note_cost(&mut self, measure: &'static Measure, value: f64) {
        if self.has_daemons() {
            self.note(measure, value);
        }
    }

    /// Records the memory of both daemons in megabytes: the peak of the private memory, the current
    /// value, and the peak with mapped files. Nothing if it is not available.
    fn note_memory(&mut self, [peak, after, mapped]: [&'static Measure; 3]) {
        let Some(watch) = &self.memory else { return };
        let (Some(now), Some(most)) = (watch.now(), watch.peak()) else { return };
        self.note(peak, most.private / 1e6);
        self.note(after, now.private / 1e6);
        self.note(mapped, most.pss / 1e6);
    }

    fn has_daemons(&self) -> bool {
        self.ends.left.daemon.is_some()
    }

    /// The sum of a figure of both daemons; NaN without daemons.
    fn of_daemons(&self, figure: impl Fn(&Processes) -> f64) -> f64 {
        let Ends { left, right, .. } = &self.ends;
        let both = [left, right].map(|end| end.processes().map_or(f64::NAN, |all| figure(&all)));
        both.into_iter().sum()
    }

    /// Processor time of both daemons until now, in seconds.
    fn cpu(&self) -> f64 {
        self.of_daemons(Processes::cpu)
    }

    /// Context switches of both daemons until now: voluntary and involuntary.
    fn switches(&self) -> [f64; 2] {
        [0, 1].map(|kind| self.of_daemons(|daemon| daemon.switches()[kind]))
    }
}

/// Ends an emulated link and adds its drops to those of earlier links of the turn.
fn note_link(readings: &RefCell<Readings>, link: &mut EmulatedLink) {
    let dropped = link.dropped();
    let mut readings = readings.borrow_mut();
    let counts = [dropped.lost, dropped.queue, dropped.refused];
    let measures: [&'static Measure; 3] = [&LINK_LOST, &LINK_QUEUE, &LINK_REFUSED];
    for (measure, count) in measures.into_iter().zip(counts) {
        let before = if readings.has(measure) { readings.of(measure) } else { 0.0 };
        readings.set(measure, before + count as f64);
    }
}

/// Enables exactly these offloads of a linerate.
fn use_only(host: &Host, program: &Path, offloads: &[&str]) {
    let program = program.display();
    let set = |name: &str, wanted| {
        host.run(format!("{program} set {INTERFACE} offload {name} {wanted}"));
    };
    set("all", "off");
    offloads.iter().for_each(|name| set(name, "on"));
}
