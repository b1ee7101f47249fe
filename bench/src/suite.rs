//! One turn: fresh hosts, two daemons of one contender, each wanted test once.
//!
//! ```text
//!   left                                               right
//!   wg0  10.9.0.1   . . . . . . tunnel . . . . . . .   wg0  10.9.0.2
//!   eth0 10.1.0.1  ------------ cable --------------   eth0 10.1.0.2
//! ```
//!
//! Forth and up are from left to right.

mod far;
mod load;
mod ping;
mod quic;
mod tcp;
mod topology;
mod udp;

use std::env;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{Family, Host, INTERFACE, Meeting, Pair, eventually};

use self::topology::EmulatedLink;
use crate::contender::Contender;
use crate::measure::{MEMORY_END, Measure, OTHERS, Readings};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Within this a program that the bench starts has its socket.
const SOON: Duration = Duration::from_secs(5);

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// TCP one stream each way, four, both ways; processor time and memory.
    Tcp,
    /// Round trips, idle and beside a full stream.
    Ping,
    /// QUIC down and up.
    Quic,
    /// Floods of small and large datagrams.
    Udp,
    /// What a flood leaves of the peak.
    Overload,
    /// TCP over a link that segments nothing.
    Plain,
    /// TCP with the delay and loss of real distances.
    Far,
}

impl Test {
    /// All of them, in the order of a turn: TCP first, for the memory that it alone takes.
    pub const ALL: [Test; 7] =
        [Test::Tcp, Test::Ping, Test::Quic, Test::Udp, Test::Overload, Test::Plain, Test::Far];

    /// Its name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Test::Tcp => "tcp",
            Test::Ping => "ping",
            Test::Quic => "quic",
            Test::Udp => "udp",
            Test::Overload => "overload",
            Test::Plain => "plain",
            Test::Far => "far",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Test> {
        Test::ALL.into_iter().find(|test| test.name() == name)
    }
}

/// What every turn does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tests.
    pub tests: Vec<Test>,
    /// The length of each measurement.
    pub seconds: u32,
    /// The link between the hosts, in the words of [`Shape::parse`]; the bare cable if not said.
    ///
    /// [`Shape::parse`]: crate::link::Shape::parse
    pub link: Option<String>,
}

/// A turn under way.
struct Turn<'a> {
    pair: Pair,
    link: Option<EmulatedLink>,
    seconds: u32,
    readings: &'a mut Readings,
    tell: &'a dyn Fn(&Measure, f64),
}

/// Runs a turn of one contender; `tell` hears of each figure as it is made.
///
/// # Panics
/// When the tunnel does not come up or a generator fails; what was read until then stays.
pub fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &mut Readings,
    tell: &dyn Fn(&Measure, f64),
) {
    let before = load::sample();
    // The others have links of their own.
    let is_common = |test: &Test| !matches!(test, Test::Plain | Test::Far);
    let link = plan.link.as_deref();
    if plan.tests.iter().any(is_common) {
        let mut turn = Turn::start(contender, plan, link, readings, tell);
        for test in plan.tests.iter().copied().filter(is_common) {
            match test {
                Test::Tcp => turn.tcp(),
                Test::Ping => turn.ping(),
                Test::Quic => turn.quic(),
                Test::Udp => turn.udp(),
                Test::Overload => turn.overload(),
                Test::Plain | Test::Far => {}
            }
        }
        turn.note(&MEMORY_END, turn.memory());
    }
    if plan.tests.contains(&Test::Plain) {
        Turn::start(contender, plan, link, readings, tell).tcp_over_plain_link();
    }
    if plan.tests.contains(&Test::Far) {
        Turn::start(contender, plan, Some(""), readings, tell).tcp_from_far();
    }
    let others = before.max(load::sample());
    tell(&OTHERS, others);
    readings.push(&OTHERS, others);
}

impl<'a> Turn<'a> {
    fn start(
        contender: &Contender,
        plan: &Plan,
        link: Option<&str>,
        readings: &'a mut Readings,
        tell: &'a dyn Fn(&Measure, f64),
    ) -> Turn<'a> {
        let (pair, link) = topology::start(&contender.program, link);
        pair.introduce(Meeting::default());
        pair.left.reaches(&pair.right, Family::V4, PATIENCE);
        if let Some(offloads) = &contender.offloads {
            for side in [&pair.left, &pair.right] {
                use_only(&side.host, contender, offloads);
            }
        }
        Turn { pair, link, seconds: plan.seconds, readings, tell }
    }

    fn note(&mut self, measure: &'static Measure, value: f64) {
        (self.tell)(measure, value);
        self.readings.push(measure, value);
    }

    fn left(&self) -> &Host {
        &self.pair.left.host
    }

    fn right(&self) -> &Host {
        &self.pair.right.host
    }

    /// The right host's address in the tunnel.
    fn target(&self) -> &str {
        self.pair.right.inner.of(Family::V4)
    }

    /// Processor time of both daemons so far, in seconds.
    fn cpu(&self) -> f64 {
        (self.pair.left.daemon.cpu() + self.pair.right.daemon.cpu()).as_secs_f64()
    }

    /// Context switches of both daemons so far.
    fn switches(&self) -> f64 {
        (self.pair.left.daemon.switches() + self.pair.right.daemon.switches()) as f64
    }

    /// Peak resident memory of both daemons so far, in megabytes.
    fn memory(&self) -> f64 {
        let bytes = self.pair.left.daemon.peak_memory() + self.pair.right.daemon.peak_memory();
        bytes as f64 / 1e6
    }
}

/// Leaves a linerate these offloads.
fn use_only(host: &Host, contender: &Contender, offloads: &[&str]) {
    let program = contender.program.path.display();
    let set = |name: &str, wanted| {
        host.run(format!("{program} set {INTERFACE} offload {name} {wanted}"));
    };
    set("all", "off");
    offloads.iter().for_each(|name| set(name, "on"));
}

/// This program, which is its own generators.
fn generator() -> PathBuf {
    env::current_exe().expect("a running program has a file")
}

/// A server of a generator, which ends with its stdin.
struct Server(Child);

impl Server {
    /// Starts it and waits for its UDP socket.
    fn start(host: &Host, arguments: &[&str], port: u16) -> Server {
        let mut command = host.command(generator());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
        let server = Server(command.spawn().expect("nsenter is installed (make deps)"));
        eventually("the generator listens", SOON, || host.dropped_by_socket(port).is_some());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It has nothing left to do; a failure to wait leaves it to the host's end.
        let _ = self.0.wait();
    }
}
