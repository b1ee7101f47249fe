//! The judge against Tailscale's own filter, which `tests/filter-oracle` runs.

use std::{
    cell::RefCell,
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use packet::filter::{AddressRange, Begun, Judge, Policy, Rule, Rules};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    any,
    bytes::{Packet, Transport},
};

/// Tailscale's filter in a process of its own.
struct Oracle {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    /// It, where `tests/netns/peers` built it.
    fn start() -> Option<Self> {
        let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
        let cache = || env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
        let peers = env::var_os("LINERATE_PEERS").map(PathBuf::from);
        let program = peers.unwrap_or_else(|| cache().join("linerate-peers"));
        let program = program.join("bin/filter-oracle");
        if !program.is_file() {
            skips::skip("filter-oracle");
            return None;
        }
        let mut process =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Some(Self { process, questions, answers })
    }

    fn ask(&mut self, verb: &str, rest: &str) -> String {
        writeln!(self.questions, "{verb} {rest}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn set(&mut self, policy: &Policy) {
        assert_eq!(self.ask("policy", &json(policy)), "ok");
    }

    fn send(&mut self, packet: &[u8]) {
        assert_eq!(self.ask("out", &hex(packet)), "ok");
    }

    fn accepts(&mut self, packet: &[u8]) -> bool {
        match &*self.ask("in", &hex(packet)) {
            "accept" => true,
            "drop" => false,
            other => panic!("unknown answer {other:?}"),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The policy with its rules as a coordinator sends them.
fn json(policy: &Policy) -> String {
    let rules = policy.rules.iter().map(rule_json);
    let local = policy.local.iter().map(|range| format!("\"{}\"", text(*range)));
    format!(
        r#"{{"Rules":[{}],"Local":[{}],"ShieldsUp":{}}}"#,
        joined(rules),
        joined(local),
        policy.shields_up
    )
}

fn rule_json(rule: &Rule) -> String {
    let sources = rule.sources.iter().map(|range| format!("\"{}\"", text(*range)));
    let destinations = rule.destinations.iter().map(|destination| {
        let (addresses, ports) = (text(destination.addresses), &destination.ports);
        let (first, last) = (ports.start(), ports.end());
        format!(r#"{{"IP":"{addresses}","Ports":{{"First":{first},"Last":{last}}}}}"#)
    });
    format!(
        r#"{{"SrcIPs":[{}],"DstPorts":[{}],"IPProto":{:?}}}"#,
        joined(sources),
        joined(destinations),
        rule.protocols
    )
}

fn text(range: AddressRange) -> String {
    format!("{}-{}", range.first(), range.last())
}

fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// A policy as the coordinator's rules can say it.
fn policy() -> impl Strategy<Value = Policy> {
    any::policy().prop_map(|mut policy| {
        policy.open_protocols = vec![99];
        for rule in policy.rules.iter_mut().filter(|rule| rule.protocols.is_empty()) {
            rule.protocols = vec![6, 17, 1, 58];
        }
        policy
    })
}

/// A packet on which both mean to agree: not of IPv4's type 12, which is a parameter problem
/// that Tailscale takes for another, nor of 18, which it takes for that; and no fragment of
/// its own protocol.
fn packet() -> impl Strategy<Value = Packet> {
    any::packet().prop_map(|mut packet| {
        match packet.transport {
            Transport::Icmp { kind: kind @ (12 | 18), code } => {
                packet.transport = Transport::Icmp { kind: kind - 1, code };
            }
            Transport::Other(99) => packet.fragment = None,
            _ => {}
        }
        packet
    })
}

#[derive(Clone, Debug)]
enum Step {
    Policy(Policy),
    Send(Packet),
    Receive(Packet),
    /// The answer to what was sent last.
    Reply,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => policy().prop_map(Step::Policy),
        4 => packet().prop_map(Step::Send),
        4 => Just(Step::Reply),
        24 => packet().prop_map(Step::Receive),
    ]
}

fn reply(packet: Packet) -> Packet {
    let transport = match packet.transport {
        Transport::Udp { ports: (a, b) } => Transport::Udp { ports: (b, a) },
        Transport::Sctp { ports: (a, b) } => Transport::Sctp { ports: (b, a) },
        other => other,
    };
    Packet { from: packet.to, to: packet.from, transport, ..packet }
}

#[test]
fn random_rules_and_packets_have_the_verdicts_of_tailscales_filter() {
    let Some(oracle) = Oracle::start() else { return };
    let (oracle, accepted) = (RefCell::new(oracle), RefCell::new([0u32; 2]));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    let tested = runner.run(&(policy(), vec(step(), 1..120)), |(first, steps)| {
        let mut oracle = oracle.borrow_mut();
        // What was begun before is another case's: shields that go up forget it.
        oracle.set(&Policy::default());
        oracle.set(&Policy { shields_up: true, ..Policy::default() });
        oracle.set(&first);
        let mut begun = Begun::new(1);
        let mut judge = Judge::new(Arc::new(Rules::new(&first)), 2);
        let (mut shields_up, mut sent) = (first.shields_up, None);
        for step in steps {
            let packet = match step {
                Step::Policy(next) => {
                    oracle.set(&next);
                    if next.shields_up && !shields_up {
                        begun = Begun::new(1);
                    }
                    shields_up = next.shields_up;
                    judge.set_rules(Arc::new(Rules::new(&next)));
                    continue;
                }
                Step::Send(packet) => {
                    oracle.send(&packet.bytes());
                    Begun::read(&packet.bytes()).into_iter().for_each(|flow| begun.note(flow));
                    judge.begin();
                    sent = Some(packet);
                    continue;
                }
                Step::Receive(packet) => packet,
                Step::Reply => match sent {
                    Some(sent) => reply(sent),
                    None => continue,
                },
            };
            let bytes = packet.bytes();
            let expected = oracle.accepts(&bytes);
            let verdict = judge.accepts(&bytes, |flow| begun.has(flow));
            prop_assert_eq!(verdict, expected, "{:?}", packet);
            accepted.borrow_mut()[usize::from(verdict)] += 1;
        }
        Ok(())
    });
    tested.unwrap();
    let [dropped, accepted] = accepted.into_inner();
    assert!(dropped > 100 && accepted > 100, "{dropped} dropped, {accepted} accepted");
}
