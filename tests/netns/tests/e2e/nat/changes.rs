//! Changes of the network during traffic.

use std::net::SocketAddr;
use std::time::Duration;

use netns::{
    Family, Host, Member, MemberKind, Nat, Pace, Path, Pinging, Stream, Tailnet, Uplink,
    accept_udp, deadline, drop_udp, eventually,
};

/// Time in which nodes find another path.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A ping a hundred times a second.
pub(super) const OFTEN: &str = "-i 0.01";
pub(super) const INTERVAL: Duration = Duration::from_millis(10);

/// A stream with short pauses.
pub(super) const PACED: Pace = Pace { piece: 10_000, rest: Duration::from_millis(5), bytes: None };

fn pair(tailnet: &Tailnet, uplink: Uplink, prepare: impl Fn(&Host)) -> [Member; 2] {
    ["one", "other"].map(|name| {
        let host = tailnet.host(name, uplink);
        prepare(&host);
        Member::join(tailnet, host, MemberKind::Linerate, "")
    })
}

#[test]
fn switching_from_a_relay_to_a_direct_path_loses_nothing() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = pair(&tailnet, Uplink::Behind(Nat::PortRestricted), drop_udp);
    one.reaches(&other, Family::V4);
    let path = one.path_to(&other);
    assert!(!matches!(path, Path::Direct(_)), "{path:?}");
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "relayed", &target);
    pinging.wait_for_replies(100, PATIENCE);
    for member in [&one, &other] {
        accept_udp(&member.host);
    }
    eventually("a direct path", PATIENCE, || {
        [(&one, &other), (&other, &one)]
            .iter()
            .all(|(from, to)| matches!(from.path_to(to), Path::Direct(_)))
    });
    pinging.wait_for_replies(100, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{} of {} answered", pings.received, pings.sent);
}

#[test]
fn a_silently_cut_path_is_replaced_within_seconds() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = pair(&tailnet, Uplink::Behind(Nat::PortRestricted), |_| {});
    one.wait_until_direct(&other);
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "cut", &target);
    pinging.wait_for_replies(100, PATIENCE);
    for member in [&one, &other] {
        drop_udp(&member.host);
    }
    eventually("they use the relay", PATIENCE, || matches!(one.path_to(&other), Path::Relay(_)));
    pinging.wait_for_replies(100, PATIENCE);
    let gap = pinging.finish().longest_gap(INTERVAL);
    assert!(gap < deadline(Duration::from_secs(5)), "{gap:?}");
}

#[test]
fn a_host_that_changes_its_addresses_keeps_its_streams() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = pair(&tailnet, Uplink::Switch, |_| {});
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
    let address = other.addresses.of(Family::V4);
    let socket = SocketAddr::new(address.parse().expect("an address"), 7000);
    let stream = Stream::start(&one.host, &other.host, socket, PACED);
    let pinging = Pinging::start(&one.host, "change", &format!("{OFTEN} {address}"));
    pinging.wait_for_replies(100, PATIENCE);
    one.host.run(
        "ip address flush dev eth0 scope global && ip address add 10.1.0.77/24 dev eth0 && \
         ip address add fd01::77/64 dev eth0 nodad && \
         ip route replace default via 10.1.0.1 && ip -6 route replace default via fd01::1",
    );
    pinging.wait_for_replies(300, PATIENCE);
    let gap = pinging.finish().longest_gap(INTERVAL);
    assert!(gap < deadline(Duration::from_secs(5)), "{gap:?}");
    let carried = stream.finish();
    assert!(carried.received > 0 && carried.received == carried.sent, "{carried:?}");
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
}
