//! A relay that fails while two nodes use it.

use std::time::Duration;

use netns::{
    Certificate, Family, Host, Member, MemberKind, Nat, Pinging, Stopwatch, Switch, Tailnet,
    Uplink, deadline, eventually, ping,
};

use super::double::{Double, Payload, RelayBehaviour};
use crate::tailnet::PATIENCE;

/// Time until they connect again, by another relay or after a restart of theirs.
const PROMISE: Duration = Duration::from_secs(5);

/// A ping fifty times a second.
const OFTEN: &str = "-i 0.02";
const INTERVAL: Duration = Duration::from_millis(20);

/// Seconds without the relay: the pauses between attempts reach their maximum.
const DEAD: u32 = 12;

/// The first region's relay stops answering, without errors.
const SILENT: &str = "
table inet dead {
  chain in {
    type filter hook input priority filter
    tcp dport 8443 drop
  }
}
";

/// Drops UDP except STUN's answers.
const DEAF: &str = "
table inet deaf {
  chain in {
    type filter hook input priority filter
    iifname eth0 meta l4proto udp udp sport != 3478 drop
  }
}
";

/// Drops UDP at a host except STUN's answers.
fn drop_udp_except_stun(host: &Host) {
    let rules = host.write("deaf", DEAF);
    host.run(format!("nft -f {rules}"));
}

/// Two nodes that use the first of two regions.
fn two_regions() -> (Double, [Member; 2], Pinging) {
    let double = Double::of_regions(&Certificate::new(Switch::coordinator()), 2);
    let nodes = ["one", "other"].map(|name| {
        let host = double.new_host(name);
        drop_udp_except_stun(&host);
        let node = Member::join_at(&double.url(), "key", host, MemberKind::Linerate, "");
        node.wait_for_home_relay("rig");
        node
    });
    nodes[0].reaches(&nodes[1], Family::V4);
    let target = format!("{OFTEN} {}", nodes[1].addresses.of(Family::V4));
    let pinging = Pinging::start(&nodes[0].host, "relay", &target);
    pinging.wait_for_replies(100, PATIENCE);
    (double, nodes, pinging)
}

fn assert_left(nodes: &[Member; 2], pinging: Pinging) {
    for node in nodes {
        node.wait_for_home_relay("rig2");
    }
    pinging.wait_for_replies(100, PATIENCE);
    let gap = pinging.finish().longest_gap(INTERVAL);
    println!("no answer for {gap:?}");
    assert!(gap < deadline(PROMISE), "{gap:?}");
}

#[test]
fn a_refusing_relay_is_replaced_by_another_region_within_seconds() {
    let (double, nodes, pinging) = two_regions();
    double.relay(RelayBehaviour::Sends(Payload::cut_off(*b"HTTP/1.1 503 Dead\r\n\r\n")));
    assert_left(&nodes, pinging);
}

#[test]
fn a_silent_relay_is_replaced_by_another_region_within_seconds() {
    let (double, nodes, pinging) = two_regions();
    let rules = double.host.write("dead", SILENT);
    double.host.run(format!("nft -f {rules}"));
    assert_left(&nodes, pinging);
}

#[test]
fn a_killed_relay_is_reconnected_within_seconds_of_its_restart() {
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
    tailnet.coordinator.restart();
    let watch = Stopwatch::start();
    let pinging = Pinging::start(&one.host, "killed", &format!("{OFTEN} {address}"));
    pinging.wait_for_replies(1, PATIENCE);
    let took = watch.elapsed();
    println!("an answer after {took:?}");
    assert!(took < deadline(PROMISE), "{took:?}");
}
