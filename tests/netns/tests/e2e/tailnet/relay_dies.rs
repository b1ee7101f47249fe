//! A relay that dies, while two nodes talk by it alone.

use std::time::Duration;

use netns::{
    Certificate, Family, Host, Member, MemberKind, Nat, Pinging, Stopwatch, Switch, Tailnet,
    Uplink, deadline, eventually, ping,
};

use super::double::{Double, RelayManner, Words};
use crate::tailnet::PATIENCE;

/// Within this they talk again: by another relay, or since theirs is there again.
const PROMISE: Duration = Duration::from_secs(5);

/// A ping fifty times a second.
const OFTEN: &str = "-i 0.02";
const INTERVAL: Duration = Duration::from_millis(20);

/// Seconds for which a relay is dead: the waits between tries are at their longest then.
const DEAD: u32 = 12;

/// The first region's relay says nothing any more, and nothing says so.
const SILENT: &str = "
table inet dead {
  chain in {
    type filter hook input priority filter
    tcp dport 8443 drop
  }
}
";

/// No UDP but STUN's answers.
const DEAF: &str = "
table inet deaf {
  chain in {
    type filter hook input priority filter
    iifname eth0 meta l4proto udp udp sport != 3478 drop
  }
}
";

/// Has a host hear no UDP but STUN's answers.
fn hear_stun_alone(host: &Host) {
    let rules = host.write("deaf", DEAF);
    host.run(format!("nft -f {rules}"));
}

/// Two nodes that talk by the first of two regions.
fn two_regions() -> (Double, [Member; 2], Pinging) {
    let double = Double::of_regions(&Certificate::new(Switch::coordinator()), 2);
    let nodes = ["one", "other"].map(|name| {
        let host = double.new_host(name);
        hear_stun_alone(&host);
        let node = Member::join_at(&double.url(), "key", host, MemberKind::Linerate, "");
        node.wait_for_home("rig");
        node
    });
    nodes[0].reaches(&nodes[1], Family::V4);
    let target = format!("{OFTEN} {}", nodes[1].addresses.of(Family::V4));
    let pinging = Pinging::start(&nodes[0].host, "relay", &target);
    pinging.goes_on(100, PATIENCE);
    (double, nodes, pinging)
}

fn assert_left(nodes: &[Member; 2], pinging: Pinging) {
    for node in nodes {
        node.wait_for_home("rig2");
    }
    pinging.goes_on(100, PATIENCE);
    let gap = pinging.finish().longest_gap(INTERVAL);
    println!("no answer for {gap:?}");
    assert!(gap < deadline(PROMISE), "{gap:?}");
}

#[test]
fn a_relay_that_refuses_is_left_for_another_region_within_seconds() {
    let (double, nodes, pinging) = two_regions();
    double.relay(RelayManner::Says(Words::cut_off(*b"HTTP/1.1 503 Dead\r\n\r\n")));
    assert_left(&nodes, pinging);
}

#[test]
fn a_relay_that_falls_silent_is_left_for_another_region_within_seconds() {
    let (double, nodes, pinging) = two_regions();
    let rules = double.host.write("dead", SILENT);
    double.host.run(format!("nft -f {rules}"));
    assert_left(&nodes, pinging);
}

#[test]
fn a_relay_that_is_killed_is_connected_within_seconds_once_it_is_started_again() {
    let Some(mut tailnet) = Tailnet::start() else { return };
    let [one, other] = ["one", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    one.reaches(&other, Family::V4);
    tailnet.coordinator.signal("KILL");
    let address = other.addresses.of(Family::V4);
    eventually("nobody relays", PATIENCE, || {
        ping(&one.host, format!("-c 1 -W 1 {address}")).received == 0
    });
    ping(&one.host, format!("-c {DEAD} {address}"));
    tailnet.coordinator.start_again();
    let watch = Stopwatch::start();
    let pinging = Pinging::start(&one.host, "killed", &format!("{OFTEN} {address}"));
    pinging.goes_on(1, PATIENCE);
    let took = watch.elapsed();
    println!("an answer after {took:?}");
    assert!(took < deadline(PROMISE), "{took:?}");
}
