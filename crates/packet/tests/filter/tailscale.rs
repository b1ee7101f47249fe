//! Compares the judge with Tailscale's own filter, which `tests/filter-oracle` runs.

use std::{cell::RefCell, sync::Arc};

use packet::filter::{AddressRange, Judge, OpenedFlows, Policy, Rule, Rules};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    any,
    bytes::{Packet, Transport},
    process::{Oracle, packet},
};

/// The policy, with its rules in the format of a coordinator.
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

/// Policies that a coordinator's rules can express.
fn policy() -> impl Strategy<Value = Policy> {
    any::policy().prop_map(|mut policy| {
        policy.open_protocols = vec![99];
        for rule in policy.rules.iter_mut().filter(|rule| rule.protocols.is_empty()) {
            rule.protocols = vec![6, 17, 1, 58];
        }
        policy
    })
}

#[derive(Clone, Debug)]
enum Step {
    Policy(Policy),
    Send(Packet),
    Receive(Packet),
    /// The reply to the last packet that was sent.
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
fn verdicts_on_random_rules_and_packets_equal_tailscales() {
    let Some(oracle) = Oracle::start() else { return };
    let (oracle, accepted) = (RefCell::new(oracle), RefCell::new([0u32; 2]));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    let tested = runner.run(&(policy(), vec(step(), 1..120)), |(first, steps)| {
        let mut oracle = oracle.borrow_mut();
        // The flows of the previous case must be removed; a policy with shields up does so.
        oracle.set(&json(&Policy::default()));
        oracle.set(&json(&Policy { shields_up: true, ..Policy::default() }));
        oracle.set(&json(&first));
        let mut begun = OpenedFlows::new(1);
        let mut judge = Judge::new(Arc::new(Rules::new(&first)), 2);
        let (mut shields_up, mut sent) = (first.shields_up, None);
        for step in steps {
            let packet = match step {
                Step::Policy(next) => {
                    oracle.set(&json(&next));
                    if next.shields_up && !shields_up {
                        begun = OpenedFlows::new(1);
                    }
                    shields_up = next.shields_up;
                    judge.set_rules(Arc::new(Rules::new(&next)));
                    continue;
                }
                Step::Send(packet) => {
                    oracle.send(&packet.bytes());
                    OpenedFlows::read(&packet.bytes())
                        .into_iter()
                        .for_each(|flow| begun.note(flow));
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
