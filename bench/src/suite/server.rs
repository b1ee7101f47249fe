//! What coordinates and relays: simulated nodes by the thousand join a network of linerate-server, or
//! of headscale; datagrams pass the one's relay, or Tailscale's derper.
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
use crate::swarm::{Group, Joined, Latency, Told};
use netns::{Processes, Watch};

/// How many nodes wait for their first map at a time: as many as a machine room that has power again.
const AT_ONCE: usize = 64;

/// Nodes of a brief test.
const FEW: usize = 20;

/// What is settled before a network is idle, and how long it is looked at then.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);

/// Nodes that a policy is saved for, how long they have to join, and what all are told by it.
const RULED: usize = 200;
const RULED_LIMIT: Duration = Duration::from_secs(60);
const POLICY: &str = r#"{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:22,443"]}]}"#;

/// So many nodes that join, how long they have, and what is read of it.
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
/// When its server does not start or a generator ends; what was read until then stays.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    tell: &dyn Fn(News<'_>),
) {
    let kind = kind(contender);
    let note = |measure: &'static Measure, figure: f64| {
        if plan.wants(measure) {
            tell(News::Figure(measure, figure));
            readings.borrow_mut().push(measure, figure);
        }
    };
    let sizes = if plan.is_brief { &SIZES[..1] } else { &SIZES };
    for size in sizes {
        let nodes = if plan.is_brief { FEW } else { size.nodes };
        join(kind, nodes, size, &note);
    }
    relay::run(kind, headscale(contender), plan, &note);
    save_policy(kind, if plan.is_brief { FEW } else { RULED }, &note);
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

/// Has so many nodes join a fresh network. Those that are not there in time are not waited for: the
/// figure is the time that they had, and how many know all others stands beside it.
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

/// Saves a policy by the command for it, and waits until all nodes are told its rules. The time is
/// since that command began.
fn save_policy(kind: CoordinatorKind, nodes: usize, note: Note<'_>) {
    let tailnet = Tailnet::without_members(kind);
    let groups = [Group::all(tailnet.coordinator.auth_key(), nodes)];
    let mut swarm = Swarm::start(&tailnet, &groups, RULED_LIMIT);
    assert_eq!(swarm.joined().whole, nodes, "all know all others");
    let file = tailnet.coordinator.host.write("policy.json", POLICY);
    swarm.listen();
    let begun = sys::clock::wall();
    tailnet.coordinator.command(&format!("policy set -f {file}"));
    let told = swarm.told();
    assert_eq!(told.count, nodes, "all are told");
    let since = |seconds: f64| (seconds - begun.as_secs_f64()) * 1e3;
    note(&SERVER_POLICY_P50, since(told.p50));
    note(&SERVER_POLICY_P99, since(told.p99));
}

/// The generator of nodes, on a host of its own; it ends with its stdin.
struct Swarm {
    process: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// It is gone with the last who has it.
    _host: Host,
}

impl Swarm {
    fn start(tailnet: &Tailnet, groups: &[Group], limit: Duration) -> Swarm {
        let host = tailnet.host("swarm", Uplink::Switch);
        let numbers = [AT_ONCE, limit.as_secs() as usize].map(|number| number.to_string());
        let mut command = host.command(generator::generator());
        command.args(["swarm", tailnet.coordinator.url(), "/run/rig/ca.pem"]).args(numbers);
        command.args(groups.iter().map(Group::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("nsenter is installed (make deps)");
        let words = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Swarm { process, words, answers, _host: host }
    }

    /// What it says next.
    fn line(&mut self) -> String {
        let mut line = String::new();
        // Without words it has ended, which is no figure.
        let _ = self.answers.read_line(&mut line);
        line.trim_end().to_owned()
    }

    fn joined(&mut self) -> Joined {
        let line = self.line();
        Joined::parse(&line).unwrap_or_else(|| panic!("the swarm says {line:?}"))
    }

    /// Has it begin something else.
    fn say(&mut self, words: &str) {
        writeln!(self.words, "{words}").expect("the swarm runs");
    }

    /// How soon others were told.
    fn latency(&mut self) -> Latency {
        let line = self.line();
        Latency::parse(&line).unwrap_or_else(|| panic!("the swarm says {line:?}"))
    }

    /// Has it note when nodes are told other rules.
    fn listen(&mut self) {
        self.say("rules");
        assert_eq!(self.line(), "listening");
    }

    /// When they were.
    fn told(&mut self) -> Told {
        let line = self.line();
        Told::parse(&line).unwrap_or_else(|| panic!("the swarm says {line:?}"))
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        // What it does ends with its host, which goes behind this.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
