//! Paths that carry less than the interface sends, or more than Ethernet. Most stand on the routed
//! form of `Pair`, of which the right link gets a smaller MTU, and whose router tells nobody: its
//! ICMP errors are lost, and so are fragments.
//!
//! ```text
//!   left 10.1.0.1 --- 1500 --- 10.1.0.254 router 10.2.0.254 --- 1300 --- 10.2.0.2 right
//!        fd01::1               fd01::254         fd02::254               fd02::2
//! ```

use std::thread;
use std::time::Duration;

use netns::{
    Family, Host, INTERFACE, Implementation, Meeting, Pace, Pair, Shown, Side, Stream, announce,
    deadline, eventually, ping,
};

/// Long enough for a handshake and the search behind it.
const SOON: Duration = Duration::from_secs(15);

/// What a narrow link carries, and less the outer headers and WireGuard's own of IPv6.
const NARROW: u32 = 1300;

fn path_mtu(of: &Side, to: &Side) -> Option<u32> {
    Shown::of(&of.host, INTERFACE).path_mtus.get(&to.key.public).copied()
}

/// What a link of this MTU carries inside, and how much less may be found.
fn inside(link: u32, outer: Family) -> std::ops::RangeInclusive<u32> {
    const STEP: u32 = 16;
    let most = link - if outer == Family::V4 { 60 } else { 80 };
    most - STEP + 1..=most
}

fn finds(of: &Side, to: &Side, expected: &std::ops::RangeInclusive<u32>) {
    let what = format!("{} finds {expected:?}", of.host.name());
    eventually(&what, SOON, || {
        // Only what is sent is asked about.
        ping(&of.host, format!("-c 1 -W 0.2 -s 1000 {}", to.inner.of(Family::V4)));
        path_mtu(of, to).is_some_and(|mtu| expected.contains(&mtu))
    });
}

/// Has a router lose the ICMP errors that it makes, and all fragments be lost behind it.
fn silence(router: &Host, right: &Host) {
    router.run(
        "nft 'add table inet silent; \
         add chain inet silent out { type filter hook output priority 0; }; \
         add rule inet silent out icmp type destination-unreachable drop; \
         add rule inet silent out icmpv6 type packet-too-big drop'",
    );
    // Before they are put together, at -400.
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
fn a_path_that_shrinks_in_mid_stream_in_silence_holds_tcp_up_for_less_than_two_seconds() {
    for outer in Family::ALL {
        let (pair, router) = Pair::routed();
        pair.introduce(Meeting { outer: Some(outer), ..Meeting::default() });
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        finds(left, right, &(1420..=1420));
        silence(&router, &right.host);

        let to = format!("{}:7000", right.inner.of(Family::V4)).parse().expect("an address");
        let pace = Pace { piece: 20_000, rest: Duration::from_millis(2), bytes: None };
        let stream = Stream::start(&left.host, &right.host, to, pace);
        thread::sleep(Duration::from_secs(1));
        narrow(&router);
        finds(left, right, &inside(NARROW, outer));
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
fn a_narrow_path_is_found_and_a_sender_of_what_is_too_long_is_told() {
    let (pair, router) = Pair::routed();
    silence(&router, &pair.right.host);
    narrow(&router);
    pair.introduce(Meeting { outer: Some(Family::V6), ..Meeting::default() });
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, SOON);
    // The router's end of the cable takes no longer frames than it sends.
    for (of, to) in [(left, right), (right, left)] {
        finds(of, to, &inside(NARROW, Family::V6));
    }
    let mtu = path_mtu(left, right).expect("it was found");
    for inner in Family::ALL {
        // Every IPv6 path has to carry 1280, in outer fragments where it must.
        let told = if inner == Family::V4 { mtu } else { mtu.max(1280) };
        let headers = if inner == Family::V4 { 28 } else { 48 };
        let target = right.inner.of(inner);
        let over =
            ping(&left.host, format!("-c 2 -i 0.2 -W 1 -M do -s {} {target}", 1420 - headers));
        assert_eq!(over.received, 0, "{}", over.text);
        assert!(
            over.text.contains(&format!("mtu = {told}"))
                || over.text.contains(&format!("mtu={told}")),
            "{}",
            over.text
        );
        let fits =
            ping(&left.host, format!("-c 2 -i 0.2 -W 1 -M do -s {} {target}", mtu - headers));
        assert!(fits.is_complete(), "{}", fits.text);
    }
}

#[test]
fn jumbo_frames_are_used_where_the_whole_path_has_them() {
    let (left, right) = Pair::hosts(9000);
    let start = |host, number| {
        Side::start(host, Implementation::Linerate, number, netns::Addresses::new(1, number))
    };
    let pair = Pair { left: start(left, 1), right: start(right, 2) };
    for side in [&pair.left, &pair.right] {
        side.host.run(format!("ip link set {INTERFACE} mtu 8920"));
    }
    pair.introduce(Meeting { outer: Some(Family::V6), ..Meeting::default() });
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, SOON);
    finds(left, right, &(8920..=8920));
    let whole =
        ping(&left.host, format!("-c 2 -i 0.2 -M do -s 8892 {}", right.inner.of(Family::V4)));
    assert!(whole.is_complete(), "{}", whole.text);
    let to = format!("{}:7000", right.inner.of(Family::V4)).parse().expect("an address");
    let bytes = Some(50_000_000);
    let stream = Stream::start(&left.host, &right.host, to, Pace { bytes, ..Pace::FULL });
    assert_eq!(stream.finish().received, 50_000_000);
    let drops = Shown::of(&left.host, INTERFACE).drops;
    assert!(!drops.contains_key("out too big") && !drops.contains_key("out path mtu"), "{drops:?}");
}

#[test]
fn peers_that_know_nothing_of_it_are_not_harmed_and_limit_nothing() {
    for peer in [Implementation::WireguardGo, Implementation::Boringtun, Implementation::Gotatun] {
        if peer.is_skipped() {
            continue;
        }
        let pair = Pair::start(Implementation::Linerate, peer);
        pair.introduce(Meeting::default());
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        let target = right.inner.of(Family::V4);
        // The questions come in the first three seconds and a half.
        let whole = ping(&left.host, format!("-c 70 -i 0.05 -W 2 -M do -s 1392 {target}"));
        assert!(whole.is_complete(), "{peer}: {}", whole.text);
        assert_eq!(path_mtu(left, right), None, "{peer}");
    }
}
