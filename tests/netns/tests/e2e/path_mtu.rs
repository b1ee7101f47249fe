//! Paths with an MTU smaller than the interface's, or larger than Ethernet's. Most tests use the
//! routed form of `Pair`, with a smaller MTU of the right link. The router's ICMP errors are dropped,
//! and so are fragments.
//!
//! ```text
//!   left 10.1.0.1 --- 1500 --- 10.1.0.254 router 10.2.0.254 --- 1300 --- 10.2.0.2 right
//!        fd01::1               fd01::254         fd02::254               fd02::2
//! ```

use std::thread;
use std::time::Duration;

use netns::{
    Family, Host, INTERFACE, Implementation, Introduction, Pace, Pair, ShowOutput, Side, Stream,
    announce, deadline, eventually, ping,
};

/// Long enough for a handshake and the following search.
const SOON: Duration = Duration::from_secs(15);

/// MTU of a narrow link.
const NARROW: u32 = 1300;

fn path_mtu(of: &Side, to: &Side) -> Option<u32> {
    ShowOutput::of(&of.host, INTERFACE).path_mtus.get(&to.key.public).copied()
}

/// The inner MTU over a link of this MTU, and how much less may be found.
fn inside(link: u32, outer: Family) -> std::ops::RangeInclusive<u32> {
    const STEP: u32 = 16;
    let most = link - if outer == Family::V4 { 60 } else { 80 };
    most - STEP + 1..=most
}

fn wait_for_mtu(of: &Side, to: &Side, expected: &std::ops::RangeInclusive<u32>) {
    let what = format!("{} finds an MTU in {expected:?}", of.host.name());
    eventually(&what, SOON, || {
        // Only lengths of sent packets are probed.
        ping(&of.host, format!("-c 1 -W 0.2 -s 1000 {}", to.inner.of(Family::V4)));
        path_mtu(of, to).is_some_and(|mtu| expected.contains(&mtu))
    });
}

/// Drops the ICMP errors of a router, and all fragments behind it.
fn drop_errors_and_fragments(router: &Host, right: &Host) {
    router.run(
        "nft 'add table inet silent; \
         add chain inet silent out { type filter hook output priority 0; }; \
         add rule inet silent out icmp type destination-unreachable drop; \
         add rule inet silent out icmpv6 type packet-too-big drop'",
    );
    // Before they are reassembled, at -400.
    right.run(
        "nft 'add table inet silent; \
         add chain inet silent in { type filter hook prerouting priority -450; }; \
         add rule inet silent in ip frag-off & 0x3fff != 0 drop; \
         add rule inet silent in exthdr frag exists drop'",
    );
}

fn narrow(router: &Host) {
    router.run(format!("ip link set r2 mtu {NARROW}"));
}

#[test]
fn a_path_that_shrinks_silently_stops_tcp_for_less_than_two_seconds() {
    for outer in Family::ALL {
        let (pair, router) = Pair::routed();
        pair.introduce(Introduction { outer: Some(outer), ..Introduction::default() });
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        wait_for_mtu(left, right, &(1420..=1420));
        drop_errors_and_fragments(&router, &right.host);

        let to = format!("{}:7000", right.inner.of(Family::V4)).parse().expect("an address");
        let pace = Pace { piece: 20_000, rest: Duration::from_millis(2), bytes: None };
        let stream = Stream::start(&left.host, &right.host, to, pace);
        thread::sleep(Duration::from_secs(1));
        narrow(&router);
        wait_for_mtu(left, right, &inside(NARROW, outer));
        thread::sleep(Duration::from_secs(1));
        let carried = stream.finish();
        announce(&format!("PATH MTU outer {outer}: longest gap {:?}", carried.longest_gap));
        assert_eq!(carried.received, carried.sent);
        assert!(
            carried.longest_gap < deadline(Duration::from_secs(2)),
            "outer {outer}: {carried:?}"
        );
    }
}

#[test]
fn a_narrow_path_is_found_and_senders_of_too_long_packets_get_errors() {
    let (pair, router) = Pair::routed();
    drop_errors_and_fragments(&router, &pair.right.host);
    narrow(&router);
    pair.introduce(Introduction { outer: Some(Family::V6), ..Introduction::default() });
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, SOON);
    // The router's end of the cable receives no longer frames than it sends.
    for (of, to) in [(left, right), (right, left)] {
        wait_for_mtu(of, to, &inside(NARROW, Family::V6));
    }
    let mtu = path_mtu(left, right).expect("it was found");
    for inner in Family::ALL {
        // Every IPv6 path must carry 1280, in outer fragments if necessary.
        let report = if inner == Family::V4 { mtu } else { mtu.max(1280) };
        let headers = if inner == Family::V4 { 28 } else { 48 };
        let target = right.inner.of(inner);
        let over =
            ping(&left.host, format!("-c 2 -i 0.2 -W 1 -M do -s {} {target}", 1420 - headers));
        assert_eq!(over.received, 0, "{}", over.text);
        assert!(
            over.text.contains(&format!("mtu = {report}"))
                || over.text.contains(&format!("mtu={report}")),
            "{}",
            over.text
        );
        let fits =
            ping(&left.host, format!("-c 2 -i 0.2 -W 1 -M do -s {} {target}", mtu - headers));
        assert!(fits.is_complete(), "{}", fits.text);
    }
}

#[test]
fn jumbo_frames_are_used_if_the_whole_path_supports_them() {
    let (left, right) = Pair::hosts(9000);
    let start = |host, number| {
        Side::start(host, Implementation::Linerate, number, netns::Addresses::new(1, number))
    };
    let pair = Pair { left: start(left, 1), right: start(right, 2) };
    for side in [&pair.left, &pair.right] {
        side.host.run(format!("ip link set {INTERFACE} mtu 8920"));
    }
    pair.introduce(Introduction { outer: Some(Family::V6), ..Introduction::default() });
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, SOON);
    wait_for_mtu(left, right, &(8920..=8920));
    let whole =
        ping(&left.host, format!("-c 2 -i 0.2 -M do -s 8892 {}", right.inner.of(Family::V4)));
    assert!(whole.is_complete(), "{}", whole.text);
    let to = format!("{}:7000", right.inner.of(Family::V4)).parse().expect("an address");
    let bytes = Some(50_000_000);
    let stream = Stream::start(&left.host, &right.host, to, Pace { bytes, ..Pace::FULL });
    assert_eq!(stream.finish().received, 50_000_000);
    let drops = ShowOutput::of(&left.host, INTERFACE).drops;
    assert!(!drops.contains_key("out too big") && !drops.contains_key("out path mtu"), "{drops:?}");
}

#[test]
fn peers_without_path_mtu_support_are_unaffected_and_set_no_limit() {
    for peer in [Implementation::WireguardGo, Implementation::Boringtun, Implementation::Gotatun] {
        if peer.is_skipped() {
            continue;
        }
        let pair = Pair::start(Implementation::Linerate, peer);
        pair.introduce(Introduction::default());
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        let target = right.inner.of(Family::V4);
        // Probes are sent in the first three and a half seconds.
        let whole = ping(&left.host, format!("-c 70 -i 0.05 -W 2 -M do -s 1392 {target}"));
        assert!(whole.is_complete(), "{peer}: {}", whole.text);
        assert_eq!(path_mtu(left, right), None, "{peer}");
    }
}
