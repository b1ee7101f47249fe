//! Nodes of a tailnet of a real headscale: tailscaled with tailscaled, linerate with linerate, and
//! each with the other.

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

/// Time in which changes reach all members.
const PATIENCE: Duration = Duration::from_secs(30);

/// Port of the streams and flows.
const PORT: u16 = 7000;

/// Datagrams of each flow.
const SLOW: Train =
    Train { count: 4, size: 1000, segmented: false, rest: Duration::from_millis(10) };

/// The datagrams through a relay. headscale's relay queues 32 packets for each node, and drops
/// more. At this rate the queue is full after 0.6 s.
const SPARSE: Train = Train { count: 1, rest: Duration::from_millis(40), ..SLOW };

/// Enough for a stream to reach its rate despite loss of its first packets.
const BYTES: u64 = 4 << 20;

/// The node that starts is the first.
const PAIRS: [[MemberKind; 2]; 4] = [
    [MemberKind::Tailscaled, MemberKind::Tailscaled],
    [MemberKind::Linerate, MemberKind::Linerate],
    [MemberKind::Linerate, MemberKind::Tailscaled],
    [MemberKind::Tailscaled, MemberKind::Linerate],
];

#[test]
fn two_tailscaled_on_one_switch_connect_directly() {
    directly(Uplink::Switch, PAIRS[0]);
}

#[test]
fn two_linerates_on_one_switch_connect_directly() {
    directly(Uplink::Switch, PAIRS[1]);
}

#[test]
fn linerate_and_tailscaled_on_one_switch_connect_directly() {
    directly(Uplink::Switch, PAIRS[2]);
}

#[test]
fn tailscaled_and_linerate_on_one_switch_connect_directly() {
    directly(Uplink::Switch, PAIRS[3]);
}

#[test]
fn two_tailscaled_behind_nats_connect_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[0]);
}

#[test]
fn two_linerates_behind_nats_connect_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[1]);
}

#[test]
fn linerate_and_tailscaled_behind_nats_connect_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[2]);
}

#[test]
fn tailscaled_and_linerate_behind_nats_connect_directly() {
    directly(Uplink::Behind(Nat::PortRestricted), PAIRS[3]);
}

#[test]
fn two_tailscaled_without_udp_use_the_relay() {
    by_the_relay(PAIRS[0]);
}

#[test]
fn two_linerates_without_udp_use_the_relay() {
    by_the_relay(PAIRS[1]);
}

#[test]
fn linerate_and_tailscaled_without_udp_use_the_relay() {
    by_the_relay(PAIRS[2]);
}

#[test]
fn tailscaled_and_linerate_without_udp_use_the_relay() {
    by_the_relay(PAIRS[3]);
}

fn directly(uplink: Uplink, kinds: [MemberKind; 2]) {
    let Some((_tailnet, one, other)) = meet(uplink, kinds) else { return };
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
    talk(&one, &other, SLOW, 0);
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
}

fn by_the_relay(kinds: [MemberKind; 2]) {
    let Some((_tailnet, one, other)) = meet(Uplink::Behind(Nat::WithoutUdp), kinds) else { return };
    talk(&one, &other, SPARSE, 1);
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert_eq!(path, Path::Relay("rig".to_owned()));
    }
}

/// Two hosts that joined; the first one starts.
fn meet(uplink: Uplink, kinds: [MemberKind; 2]) -> Option<(Tailnet, Member, Member)> {
    let tailnet = Tailnet::start()?;
    let [one, other] = [0, 1].map(|at| {
        let host = tailnet.host(["one", "other"][at], uplink);
        Member::join(&tailnet, host, kinds[at], "")
    });
    one.reaches(&other, Family::V4);
    Some((tailnet, one, other))
}

/// Pings, a stream and datagrams in both directions, of both families; all data arrives unchanged.
/// `lost` pings may be lost during the flows.
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
    assert!(pings.received + lost >= pings.sent, "during flows: {}", pings.text);
    // Each waits for late datagrams.
    let flows = flows.into_iter().map(|flow| in_background("flow", || flow.finish()));
    for flow in flows.collect::<Vec<_>>() {
        let arrived = flow.join().expect("data arrives unchanged");
        assert!(arrived.received > 0 && arrived.lost() < 0.05, "{arrived:?}");
    }
}

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}
