//! Nodes of a tailnet that a real headscale runs: tailscaled with tailscaled, linerate with linerate,
//! and each with the other.

mod client;
mod commands;
mod double;
mod hostile;
mod library;
mod relay_dies;
mod relays;
mod routes;
mod trouble;
mod userspace;

use std::net::SocketAddr;
use std::time::Duration;

use netns::{
    Datagrams, Family, Member, MemberKind, Nat, Pace, Path, Stream, Tailnet, Train, Uplink,
    in_background, ping,
};

/// Within this what members tell each other is known.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of the streams and flows that are looked at.
const PORT: u16 = 7000;

/// Datagrams of each flow.
const SLOW: Train =
    Train { count: 4, size: 1000, segmented: false, rest: Duration::from_millis(10) };

/// The datagrams through a relay. headscale's relay queues 32 packets for each node, and drops more. At
/// this rate the queue is full after 0.6 s.
const SPARSE: Train = Train { count: 1, rest: Duration::from_millis(40), ..SLOW };

/// A stream with some loss of its first packets has found its rate behind this.
const BYTES: u64 = 4 << 20;

/// The one that begins comes first.
const PAIRS: [[MemberKind; 2]; 4] = [
    [MemberKind::Tailscaled, MemberKind::Tailscaled],
    [MemberKind::Linerate, MemberKind::Linerate],
    [MemberKind::Linerate, MemberKind::Tailscaled],
    [MemberKind::Tailscaled, MemberKind::Linerate],
];

#[test]
fn two_tailscaled_on_one_switch_talk_directly() {
    directly(Uplink::Switch, PAIRS[0]);
}

#[test]
fn two_linerates_on_one_switch_talk_directly() {
    directly(Uplink::Switch, PAIRS[1]);
}

#[test]
fn linerate_talks_to_tailscaled_on_one_switch_directly() {
    directly(Uplink::Switch, PAIRS[2]);
}

#[test]
fn tailscaled_talks_to_linerate_on_one_switch_directly() {
    directly(Uplink::Switch, PAIRS[3]);
}

#[test]
fn two_tailscaled_behind_nats_talk_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[0]);
}

#[test]
fn two_linerates_behind_nats_talk_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[1]);
}

#[test]
fn linerate_talks_to_tailscaled_behind_nats_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[2]);
}

#[test]
fn tailscaled_talks_to_linerate_behind_nats_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[3]);
}

#[test]
fn two_tailscaled_without_udp_talk_by_the_relay() {
    by_the_relay(PAIRS[0]);
}

#[test]
fn two_linerates_without_udp_talk_by_the_relay() {
    by_the_relay(PAIRS[1]);
}

#[test]
fn linerate_talks_to_tailscaled_without_udp_by_the_relay() {
    by_the_relay(PAIRS[2]);
}

#[test]
fn tailscaled_talks_to_linerate_without_udp_by_the_relay() {
    by_the_relay(PAIRS[3]);
}

fn directly(uplink: Uplink, kinds: [MemberKind; 2]) {
    let Some((_tailnet, one, other)) = meet(uplink, kinds) else { return };
    one.becomes_direct(&other);
    other.becomes_direct(&one);
    talk(&one, &other, SLOW, 0);
    one.becomes_direct(&other);
    other.becomes_direct(&one);
}

fn by_the_relay(kinds: [MemberKind; 2]) {
    let Some((_tailnet, one, other)) = meet(Uplink::Behind(Nat::WithoutUdp), kinds) else { return };
    talk(&one, &other, SPARSE, 1);
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert_eq!(path, Path::Relay("rig".to_owned()));
    }
}

/// Two hosts that joined; the first begins.
fn meet(uplink: Uplink, kinds: [MemberKind; 2]) -> Option<(Tailnet, Member, Member)> {
    let tailnet = Tailnet::start()?;
    let [one, other] = [0, 1].map(|at| {
        let host = tailnet.host(["one", "other"][at], uplink);
        Member::join(&tailnet, host, kinds[at], "")
    });
    one.reaches(&other, Family::V4);
    Some((tailnet, one, other))
}

/// Pings, a stream and datagrams each way, of both families; what arrives is what was sent. Of the
/// pings beside others so many may be lost.
fn talk(one: &Member, other: &Member, train: Train, lost: u32) {
    let ways = [(one, other), (other, one)];
    let ways = Family::ALL.into_iter().flat_map(|family| ways.map(|(from, to)| (from, to, family)));
    let mut flows = Vec::new();
    for (port, (from, to, family)) in (PORT..).zip(ways.clone()) {
        let target = to.addresses.of(family);
        let pings = ping(&from.host, format!("-c 3 -i 0.1 -W 5 -s 1000 {target}"));
        assert!(pings.is_complete(), "{}: {}", from.host.name(), pings.text);
        let pace = Pace { bytes: Some(BYTES), ..Pace::FULL };
        let carried = Stream::start(&from.host, &to.host, socket(target, port), pace).finish();
        assert_eq!(carried.received, BYTES, "{}", from.host.name());
    }
    for (port, (from, to, family)) in (PORT..).zip(ways) {
        let target = socket(to.addresses.of(family), port);
        flows.push(Datagrams::start(&from.host, &to.host, target, train));
    }
    let pings = ping(&one.host, format!("-c 10 -i 0.1 {}", other.addresses.of(Family::V4)));
    assert!(pings.received + lost >= pings.sent, "beside flows: {}", pings.text);
    // Each waits for late ones.
    let flows = flows.into_iter().map(|flow| in_background("flow", || flow.finish()));
    for flow in flows.collect::<Vec<_>>() {
        let arrived = flow.join().expect("what arrives is what was sent");
        assert!(arrived.received > 0 && arrived.lost() < 0.05, "{arrived:?}");
    }
}

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}
