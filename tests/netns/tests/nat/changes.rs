//! What changes while traffic goes.

use std::net::SocketAddr;
use std::time::Duration;

use netns::{
    Family, Host, Member, MemberKind, Nat, Pace, Path, Ping, Pinging, Stream, Tailnet, Uplink,
    eventually,
};

/// Within this nodes find another way.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ping a hundred times a second.
const OFTEN: &str = "-i 0.01";

/// Nothing of UDP comes in any more, and who sent it hears nothing of that.
const DEAF: &str = "nft 'add table inet deaf; \
    add chain inet deaf in { type filter hook input priority filter; }; \
    add rule inet deaf in iifname eth0 meta l4proto udp drop'";

const HEARING: &str = "nft delete table inet deaf";

/// A stream that never rests for long.
const PACED: Pace = Pace { piece: 10_000, rest: Duration::from_millis(5), bytes: None };

fn pair(tailnet: &Tailnet, uplink: Uplink, prepare: impl Fn(&Host)) -> [Member; 2] {
    ["one", "other"].map(|name| {
        let host = tailnet.host(name, uplink);
        prepare(&host);
        Member::join(tailnet, host, MemberKind::Linerate, "")
    })
}

/// For how long no request was answered, at most.
fn longest_gap(pings: &Ping) -> Duration {
    let answered = pings.text.lines().filter_map(|line| {
        line.split("icmp_seq=").nth(1)?.split_whitespace().next()?.parse::<u32>().ok()
    });
    let mut all: Vec<u32> = answered.chain([0, pings.sent + 1]).collect();
    all.sort_unstable();
    let gaps = all.windows(2).map(|two| (two[1] - two[0]).saturating_sub(1));
    Duration::from_millis(10) * gaps.max().unwrap_or_default()
}

#[test]
fn who_goes_from_a_relay_to_a_direct_way_loses_nothing() {
    let Some(tailnet) = Tailnet::start() else { return };
    let deaf = |host: &Host| drop(host.run(DEAF));
    let [one, other] = pair(&tailnet, Uplink::Behind(Nat::PortRestricted), deaf);
    one.reaches(&other, Family::V4);
    let path = one.path_to(&other);
    assert!(!matches!(path, Path::Direct(_)), "{path:?}");
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "relayed", &target);
    pinging.goes_on(100, PATIENCE);
    for member in [&one, &other] {
        member.host.run(HEARING);
    }
    eventually("a direct way", PATIENCE, || {
        [(&one, &other), (&other, &one)]
            .iter()
            .all(|(from, to)| matches!(from.path_to(to), Path::Direct(_)))
    });
    pinging.goes_on(100, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{} of {} answered", pings.received, pings.sent);
}

#[test]
fn a_way_that_is_cut_in_silence_is_left_within_seconds() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = pair(&tailnet, Uplink::Behind(Nat::PortRestricted), |_| {});
    one.becomes_direct(&other);
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "cut", &target);
    pinging.goes_on(100, PATIENCE);
    for member in [&one, &other] {
        member.host.run(DEAF);
    }
    eventually("they go by the relay", PATIENCE, || matches!(one.path_to(&other), Path::Relay(_)));
    pinging.goes_on(100, PATIENCE);
    let gap = longest_gap(&pinging.finish());
    assert!(gap < Duration::from_secs(5), "{gap:?}");
}

#[test]
fn a_host_that_changes_its_addresses_keeps_its_streams() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = pair(&tailnet, Uplink::Switch, |_| {});
    one.becomes_direct(&other);
    other.becomes_direct(&one);
    let address = other.addresses.of(Family::V4);
    let socket = SocketAddr::new(address.parse().expect("an address"), 7000);
    let stream = Stream::start(&one.host, &other.host, socket, PACED);
    let pinging = Pinging::start(&one.host, "change", &format!("{OFTEN} {address}"));
    pinging.goes_on(100, PATIENCE);
    one.host.run(
        "ip address flush dev eth0 scope global && ip address add 10.1.0.77/24 dev eth0 && \
         ip address add fd01::77/64 dev eth0 nodad && \
         ip route replace default via 10.1.0.1 && ip -6 route replace default via fd01::1",
    );
    pinging.goes_on(300, PATIENCE);
    let gap = longest_gap(&pinging.finish());
    assert!(gap < Duration::from_secs(5), "{gap:?}");
    let carried = stream.finish();
    assert!(carried.received > 0 && carried.received == carried.sent, "{carried:?}");
    one.becomes_direct(&other);
    other.becomes_direct(&one);
}
