//! Traffic of two idle nodes.

use std::thread;
use std::time::Duration;

use netns::{Counter, Family, Member, MemberKind, Nat, Stopwatch, Tailnet, Uplink, deadline, ping};

/// Time after which an unused path is no longer kept alive: 45 s after the last datagram.
const SETTLED: Duration = Duration::from_secs(50);

/// Duration of the count.
const WINDOW: Duration = Duration::from_secs(60);

/// Limit of datagrams a second, of each node.
const PROMISE: f64 = 0.2;

#[test]
fn an_idle_direct_peer_costs_at_most_a_datagram_in_five_seconds() {
    let Some(tailnet) = Tailnet::start() else { return };
    let nodes = ["one", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    nodes[0].wait_until_direct(&nodes[1]);
    nodes[1].wait_until_direct(&nodes[0]);
    thread::sleep(SETTLED);
    let sent = nodes
        .each_ref()
        .map(|node| Counter::start(&node.host, "sent", "output", "oifname eth0 meta l4proto udp"));
    thread::sleep(WINDOW);
    for (node, sent) in nodes.iter().zip(sent) {
        let rate = sent.packets() as f64 / WINDOW.as_secs_f64();
        println!("{}: {rate} datagrams a second", node.host.name());
        assert!(rate <= PROMISE, "{rate} a second");
    }
}

/// Pauses around the 20 s after which the boxes delete flows, and the 45 s after which an unused
/// path is given up.
const SILENCES: [u64; 3] = [18, 30, 60];

/// Time in which two are direct again.
const AGAIN: Duration = Duration::from_secs(3);

#[test]
fn a_pause_behind_boxes_with_short_timeouts_loses_no_packet() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = ["one", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::Forgetful));
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
    for silence in SILENCES {
        thread::sleep(Duration::from_secs(silence));
        let path = one.path_to(&other);
        let watch = Stopwatch::start();
        let target = other.addresses.of(Family::V4);
        let pings = ping(&one.host, format!("-c 40 -i 0.05 {target}"));
        assert!(pings.is_complete(), "after {silence} s: {} of {}", pings.received, pings.sent);
        one.wait_until_direct(&other);
        let (median, took) = (pings.median(), watch.elapsed());
        println!("after {silence} s: it was {path:?}, {median} ms, direct within {took:?}");
        // The pings themselves take two seconds.
        assert!(
            took < deadline(Duration::from_secs(2) + AGAIN),
            "after {silence} s: direct in {took:?}"
        );
    }
}
