//! One turn: fresh hosts, one contender, each wanted test once.
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
mod handshakes;
mod jumbo;
mod load;
mod peers;
mod ping;
mod proxy;
mod quic;
mod server;
mod tcp;
mod test;
mod topology;
mod udp;
mod vxlan;

use std::path::Path;
use std::time::Duration;

use netns::{Daemon, Family, Host, INTERFACE};

use self::server::{Server, generator};
pub use self::test::{Plan, Test};
use self::topology::{EmulatedLink, Ends};
use crate::contender::Contender;
use crate::flame::{Flame, Profiler};
use crate::measure::{
    LINK_LOST, LINK_QUEUE, LINK_REFUSED, MEMORY_END, Measure, OTHERS, QUIC_TLS_UP, QUIC_UP,
    Readings,
};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// A turn under way.
struct Turn<'a> {
    ends: Ends,
    /// Between whom the traffic is, and how the client calls the server.
    client: Host,
    server: Host,
    target: String,
    plan: &'a Plan,
    readings: &'a mut Readings,
    tell: &'a dyn Fn(News<'_>),
}

/// What is heard of a turn while it runs.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A test begins.
    Test(Test),
    /// A figure was made.
    Figure(&'a Measure, f64),
}

/// Runs a turn of one contender.
///
/// # Panics
/// When the tunnel does not come up or a generator fails; what was read until then stays.
pub fn run(contender: &Contender, plan: &Plan, readings: &mut Readings, tell: &dyn Fn(News<'_>)) {
    let before = if plan.is_brief { 0.0 } else { load::sample() };
    let mut tests = plan.tests.clone();
    tests.retain(|test| match test.lacks(contender, plan.link.is_some()) {
        Some(reason) => {
            readings.push_lack(test.name(), reason);
            false
        }
        None => true,
    });
    if tests.iter().any(|test| !test.has_own_hosts()) {
        let mut turn = Turn::start(contender, plan, readings, tell);
        for test in tests.iter().copied().filter(|test| !test.has_own_hosts()) {
            tell(News::Test(test));
            turn.test(test);
        }
        turn.note(&MEMORY_END, turn.memory());
        turn.note_link();
    }
    for test in tests.into_iter().filter(|test| test.has_own_hosts()) {
        tell(News::Test(test));
        if test == Test::Proxy {
            proxy::run(contender, plan, readings, tell);
            continue;
        }
        let far = Plan { link: Some(String::new()), ..plan.clone() };
        let plan = if test == Test::Far { &far } else { plan };
        let mut turn = Turn::start(contender, plan, readings, tell);
        turn.test(test);
        turn.note_link();
    }
    if plan.is_brief {
        return;
    }
    let others = before.max(load::sample());
    tell(News::Figure(&OTHERS, others));
    readings.push(&OTHERS, others);
}

/// Runs one test of a contender with a profiler at both ends. Of TCP and QUIC it is what goes from
/// left to right, so that one end sends and the other receives. An error says why there is none.
///
/// # Panics
/// As [`run`].
pub fn profile(contender: &Contender, plan: &Plan, test: Test) -> Result<Vec<Flame>, String> {
    if test == Test::Proxy {
        return Err("it has no pair of daemons to look at".to_owned());
    }
    let (mut readings, tell) = (Readings::default(), |_: News<'_>| ());
    let mut turn = Turn::start(contender, plan, &mut readings, &tell);
    let Ends { left, right, .. } = &turn.ends;
    let mut profilers = Vec::new();
    for (end, name) in [(left, "left"), (right, "right")] {
        let daemon = end.daemon.as_ref().ok_or("there is no daemon to look at")?;
        profilers.push((Profiler::start(&end.host, daemon)?, name));
    }
    match test {
        Test::Tcp => drop(turn.iperf("").run()),
        Test::Quic => turn.quic_way(&QUIC_UP, "up", "plain"),
        Test::QuicTls => turn.quic_way(&QUIC_TLS_UP, "up", "tls"),
        other => turn.test(other),
    }
    let name = |end| format!("{}, {}, {end} end", contender.name, test.name());
    let drawn = profilers.into_iter().map(|(one, end)| one.finish(name(end), end));
    // An end that had nothing to do has no picture: of handshakes there is only the hub's.
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
        readings: &'a mut Readings,
        tell: &'a dyn Fn(News<'_>),
    ) -> Turn<'a> {
        let ends = Ends::start(contender, plan.link.as_deref());
        if let (Some(offloads), Some(program)) = (&contender.offloads, contender.program()) {
            for end in [&ends.left, &ends.right] {
                use_only(&end.host, &program.path, offloads);
            }
        }
        let (client, server) = (ends.left.host.clone(), ends.right.host.clone());
        let target = ends.right.inner.of(Family::V4).to_owned();
        Turn { ends, client, server, target, plan, readings, tell }
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
            // Its ends are no pair of daemons: see `run`.
            Test::Proxy => {}
        }
    }

    fn note(&mut self, measure: &'static Measure, value: f64) {
        (self.tell)(News::Figure(measure, value));
        self.readings.push(measure, value);
    }

    fn note_link(&mut self) {
        if let Some(link) = &mut self.ends.link {
            note_link(self.readings, link);
        }
    }

    fn daemons(&self) -> Option<[&Daemon; 2]> {
        let Ends { left, right, .. } = &self.ends;
        Some([left.daemon.as_ref()?, right.daemon.as_ref()?])
    }

    /// The sum of a figure of both daemons; not a number where there are none.
    fn of_daemons(&self, figure: impl Fn(&Daemon) -> f64) -> f64 {
        self.daemons().map_or(f64::NAN, |daemons| daemons.into_iter().map(figure).sum())
    }

    /// Processor time of both daemons so far, in seconds.
    fn cpu(&self) -> f64 {
        self.of_daemons(|daemon| daemon.cpu().as_secs_f64())
    }

    /// Context switches of both daemons so far: voluntary, and not.
    fn switches(&self) -> [f64; 2] {
        [0, 1].map(|kind| self.of_daemons(|daemon| daemon.switches()[kind] as f64))
    }

    /// Peak resident memory of both daemons so far, in megabytes.
    fn memory(&self) -> f64 {
        self.of_daemons(|daemon| daemon.peak_memory() as f64 / 1e6)
    }
}

/// What an emulated link has dropped, which it ends; beside what others of the turn did.
fn note_link(readings: &mut Readings, link: &mut EmulatedLink) {
    let dropped = link.dropped();
    let counts = [dropped.lost, dropped.queue, dropped.refused];
    let measures: [&'static Measure; 3] = [&LINK_LOST, &LINK_QUEUE, &LINK_REFUSED];
    for (measure, count) in measures.into_iter().zip(counts) {
        let before = if readings.has(measure) { readings.of(measure) } else { 0.0 };
        readings.set(measure, before + count as f64);
    }
}

/// Leaves a linerate these offloads.
fn use_only(host: &Host, program: &Path, offloads: &[&str]) {
    let program = program.display();
    let set = |name: &str, wanted| {
        host.run(format!("{program} set {INTERFACE} offload {name} {wanted}"));
    };
    set("all", "off");
    offloads.iter().for_each(|name| set(name, "on"));
}
