//! Coordination and relaying: thousands of simulated nodes join a network of linerate-server or
//! headscale; datagrams pass through linerate-server's relay or Tailscale's derper.
//!
//! ```text
//!   coordinator ----- switch ----- swarm: all nodes, in one process
//! ```

mod many;
mod relay;

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use netns::{CoordinatorKind, Host, Tailnet, Uplink};

use super::{News, Plan, generator};
use crate::contender::{Carrier, Contender, Headscale};
use crate::measure::{
    Measure, SERVER_650, SERVER_650_BYTES, SERVER_650_CPU, SERVER_650_MEMORY,
    SERVER_650_MEMORY_PSS, SERVER_650_REACHED, SERVER_2000, SERVER_2000_BYTES, SERVER_2000_CPU,
    SERVER_2000_MEMORY, SERVER_2000_MEMORY_PSS, SERVER_2000_REACHED, SERVER_IDLE,
    SERVER_POLICY_P50, SERVER_POLICY_P99,
};
use crate::readings::Readings;
use crate::swarm::{Group, Joined, Latency, RulesReport};
use netns::{Processes, Watch};

/// Nodes that wait for their first map at a time, as in a machine room whose power returns.
const AT_ONCE: usize = 64;

/// Nodes of a brief test.
const BRIEF_NODES: usize = 20;

/// Time before a network is considered idle, and time of the idle measurement.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);

/// Nodes of the policy test, their time to join, and the policy.
const POLICY_NODES: usize = 200;
const POLICY_LIMIT: Duration = Duration::from_secs(60);
const POLICY: &str = r#"{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:22,443"]}]}"#;

/// A number of nodes, their time to join, and the measures.
struct Size {
    nodes: usize,
    limit: Duration,
    measures: Measures,
}

struct Measures {
    time: &'static Measure,
    reached: &'static Measure,
    cpu: &'static Measure,
    memory: &'static Measure,
    pss: &'static Measure,
    bytes: &'static Measure,
}

static SIZES: [Size; 2] = [
    Size {
        nodes: 650,
        limit: Duration::from_secs(120),
        measures: Measures {
            time: &SERVER_650,
            reached: &SERVER_650_REACHED,
            cpu: &SERVER_650_CPU,
            memory: &SERVER_650_MEMORY,
            pss: &SERVER_650_MEMORY_PSS,
            bytes: &SERVER_650_BYTES,
        },
    },
    Size {
        nodes: 2000,
        limit: Duration::from_secs(180),
        measures: Measures {
            time: &SERVER_2000,
            reached: &SERVER_2000_REACHED,
            cpu: &SERVER_2000_CPU,
            memory: &SERVER_2000_MEMORY,
            pss: &SERVER_2000_MEMORY_PSS,
            bytes: &SERVER_2000_BYTES,
        },
    },
];

/// Notes a figure.
type Note<'a> = &'a dyn Fn(&'static Measure, f64);

pub(super) use self::many::run as run_many;

/// Measures a contender.
///
/// # Panics
/// If its server does not start or a generator ends. Earlier readings remain.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    notify: &dyn Fn(News<'_>),
) {
    let kind = kind(contender);
    let note = |measure: &'static Measure, figure: f64| {
        if plan.wants(measure) {
            notify(News::Figure(measure, figure));
            readings.borrow_mut().push(measure, figure);
        }
    };
    let sizes = if plan.is_brief { &SIZES[..1] } else { &SIZES };
    for size in sizes {
        let nodes = if plan.is_brief { BRIEF_NODES } else { size.nodes };
        join(kind, nodes, size, &note);
    }
    relay::run(kind, headscale(contender), plan, &note);
    save_policy(kind, if plan.is_brief { BRIEF_NODES } else { POLICY_NODES }, &note);
}

/// The programs of headscale, if they are measured.
fn headscale(contender: &Contender) -> Option<&Headscale> {
    match &contender.carrier {
        Carrier::Headscale(programs) => Some(programs),
        _ => None,
    }
}

fn kind(contender: &Contender) -> CoordinatorKind {
    match headscale(contender) {
        Some(_) => CoordinatorKind::Headscale,
        None => CoordinatorKind::Linerate,
    }
}

/// Joins `nodes` nodes to a fresh network. After the limit it does not wait for the others: the
/// time is the limit, and a second figure says how many have all peers.
fn join(kind: CoordinatorKind, nodes: usize, size: &Size, note: Note<'_>) {
    let tailnet = Tailnet::without_members(kind);
    let server = Processes::of(&tailnet.coordinator.host, tailnet.coordinator.pid());
    let (watch, before) = (Watch::start(vec![server.clone()]), server.cpu());
    let groups = [Group::all(tailnet.coordinator.auth_key(), nodes)];
    let mut swarm = Swarm::start(&tailnet, &groups, size.limit);
    let joined = swarm.joined();
    let measures = &size.measures;
    note(measures.time, joined.seconds);
    note(measures.reached, joined.whole as f64);
    note(measures.cpu, (server.cpu() - before) * 1e3 / nodes as f64);
    let memory = watch.peak().unwrap_or_default();
    note(measures.memory, memory.private / 1e6);
    note(measures.pss, memory.pss / 1e6);
    note(measures.bytes, joined.bytes as f64 / 1e3 / nodes as f64);
    if nodes == SIZES[1].nodes && joined.whole == nodes {
        thread::sleep(SETTLE);
        let before = server.cpu();
        thread::sleep(IDLE);
        note(&SERVER_IDLE, (server.cpu() - before) * 100.0 / IDLE.as_secs_f64());
    }
}

/// Saves a policy by the command line and waits until all nodes have its rules. The time starts
/// with the command.
fn save_policy(kind: CoordinatorKind, nodes: usize, note: Note<'_>) {
    let tailnet = Tailnet::without_members(kind);
    let groups = [Group::all(tailnet.coordinator.auth_key(), nodes)];
    let mut swarm = Swarm::start(&tailnet, &groups, POLICY_LIMIT);
    assert_eq!(swarm.joined().whole, nodes, "each node has all peers");
    let file = tailnet.coordinator.host.write("policy.json", POLICY);
    swarm.watch_rules();
    let begun = sys::clock::wall();
    tailnet.coordinator.command(&format!("policy set -f {file}"));
    let report = swarm.rules_report();
    assert_eq!(report.count, nodes, "all nodes have the rules");
    let since = |seconds: f64| (seconds - begun.as_secs_f64()) * 1e3;
    note(&SERVER_POLICY_P50, since(report.p50));
    note(&SERVER_POLICY_P99, since(report.p99));
}

/// The generator of nodes on its own host; it ends with its stdin.
struct Swarm {
    process: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The host ends when the last user drops it.
    _host: Host,
}

impl Swarm {
    fn start(tailnet: &Tailnet, groups: &[Group], limit: Duration) -> Self {
        let host = tailnet.host("swarm", Uplink::Switch);
        let numbers = [AT_ONCE, limit.as_secs() as usize].map(|number| number.to_string());
        let mut command = host.command(generator::generator());
        command.args(["swarm", tailnet.coordinator.url(), "/run/rig/ca.pem"]).args(numbers);
        command.args(groups.iter().map(Group::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("nsenter is installed (make deps)");
        let words = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, words, answers, _host: host }
    }

    /// The next line of output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        // Without output the process has ended, and parsing fails.
        let _ = self.answers.read_line(&mut line);
        line.trim_end().to_owned()
    }

    fn joined(&mut self) -> Joined {
        let line = self.line();
        Joined::parse(&line).unwrap_or_else(|| panic!("unexpected line of the swarm: {line:?}"))
    }

    /// Sends a command.
    fn send(&mut self, words: &str) {
        writeln!(self.words, "{words}").expect("the swarm runs");
    }

    /// The delay until other nodes have a change.
    fn latency(&mut self) -> Latency {
        let line = self.line();
        Latency::parse(&line).unwrap_or_else(|| panic!("unexpected line of the swarm: {line:?}"))
    }

    /// Starts recording when nodes receive new rules.
    fn watch_rules(&mut self) {
        self.send("rules");
        assert_eq!(self.line(), "listening");
    }

    /// When they received them.
    fn rules_report(&mut self) -> RulesReport {
        let line = self.line();
        RulesReport::parse(&line)
            .unwrap_or_else(|| panic!("unexpected line of the swarm: {line:?}"))
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        // The process ends with its host, which is dropped after this.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
