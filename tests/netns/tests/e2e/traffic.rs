//! Ping and iperf3 through a tunnel between two linerates.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```

use std::time::Duration;

use netns::{
    Family, INTERFACE, Implementation, Introduction, Iperf, Pair, ShowOutput, announce, ping,
};

/// Bytes of each TCP stream.
const BYTES: u64 = 64 << 20;

const SOON: Duration = Duration::from_secs(10);

fn linerates_over(outer: Family) -> Pair {
    let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    pair.introduce(Introduction { outer: Some(outer), ..Introduction::default() });
    pair
}

#[test]
fn ping_and_tcp_pass_over_all_inner_and_outer_families() {
    for outer in Family::ALL {
        let pair = linerates_over(outer);
        let (left, right) = (&pair.left, &pair.right);
        for inner in Family::ALL {
            let case = format!("inside {inner}, outside {outer}");
            left.reaches(right, inner, SOON);
            let pings = ping(&left.host, format!("-c 5 -i 0.3 {}", right.inner.of(inner)));
            assert!(pings.is_complete(), "{case}: {}", pings.text);
            for (direction, options) in [("->", ""), ("<-", "-R")] {
                let address = right.inner.of(inner);
                let (client, server) = (&left.host, &right.host);
                let rate = Iperf { client, server, address, seconds: 2, options }.carry(BYTES);
                announce(&format!("tcp, {case}: left {direction} right {:.2} Gbit/s", rate.gbps()));
            }
        }
    }
}

#[test]
fn pings_of_the_whole_mtu_pass_without_fragments() {
    // 1420 less the IP header of 20 or 40 bytes and ICMP's 8.
    let largest = |family| if family == Family::V4 { 1392 } else { 1372 };
    for outer in Family::ALL {
        let pair = linerates_over(outer);
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, SOON);
        for inner in Family::ALL {
            let target = right.inner.of(inner);
            // Around the WireGuard padding of 16 and the MTU, where padding must not exceed it.
            for size in [0, 1, 15, 16, 17, 100, 1000, largest(inner) - 17, largest(inner) - 1] {
                let one = ping(&left.host, format!("-c 1 -W 2 -M do -s {size} {target}"));
                assert!(one.is_complete(), "{size} bytes over {outer}: {}", one.text);
            }
            let whole = format!("-c 3 -i 0.1 -W 2 -M do -s {} {target}", largest(inner));
            let whole = ping(&left.host, whole);
            assert!(whole.is_complete(), "inside {inner}, outside {outer}: {}", whole.text);
            let over = format!("-c 1 -W 1 -M do -s {} {target}", largest(inner) + 1);
            assert!(!ping(&left.host, over).is_complete(), "one byte over the MTU got through");
        }
    }
}

#[test]
fn pings_larger_than_the_mtu_pass_as_fragments() {
    let pair = linerates_over(Family::V4);
    pair.left.reaches(&pair.right, Family::V4, SOON);
    for inner in Family::ALL {
        let target = pair.right.inner.of(inner);
        let pings = ping(&pair.left.host, format!("-c 3 -i 0.1 -W 2 -s 8000 {target}"));
        assert!(pings.is_complete(), "inside {inner}: {}", pings.text);
    }
}

#[test]
fn udp_at_a_modest_rate_arrives_completely() {
    let pair = linerates_over(Family::V4);
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, SOON);
    for inner in Family::ALL {
        for options in ["-u -b 50M -l 1300", "-u -b 5M -l 64", "-u -b 50M -l 1300 -R"] {
            let address = right.inner.of(inner);
            let (client, server) = (&left.host, &right.host);
            let overflows = || client.udp_count("RcvbufErrors") + server.udp_count("RcvbufErrors");
            let before = overflows();
            let rate = Iperf { client, server, address, seconds: 1, options }.run();
            announce(&format!("udp {options}, inside {inner}: {:.2} % lost", rate.lost_percent));
            assert!(rate.bits_per_second > 4e6, "{options}: {rate:?}");
            // A busy machine drops some datagrams in iperf3's own small socket, which the kernel
            // counts. Drops of the tunnel's socket are checked below.
            let own = overflows() - before;
            assert!(
                rate.lost_percent_without(own) < 20.0,
                "{options}: {rate:?}, iperf3's own: {own}"
            );
        }
    }
    for side in [left, right] {
        let mut drops = ShowOutput::of(&side.host, INTERFACE).drops;
        // Messages of a new interface to multicast groups.
        drops.remove("out no peer");
        assert!(drops.is_empty(), "{drops:?}");
    }
}

#[test]
fn counters_and_the_last_handshake_match_the_traffic() {
    let pair = linerates_over(Family::V4);
    let (left, right) = (&pair.left, &pair.right);
    let before = left.peer_status(right);
    assert_eq!((before.latest_handshake, before.received, before.sent), (0, 0, 0));

    left.reaches(right, Family::V4, SOON);
    let met = left.peer_status(right);
    assert!(met.latest_handshake > 0, "{met:?}");
    assert!(right.peer_status(left).latest_handshake > 0);

    // Too short for path MTU probes.
    let payload = 400;
    let count = 20;
    let target = right.inner.of(Family::V4);
    let pings = ping(&left.host, format!("-c {count} -i 0.02 -s {payload} {target}"));
    assert!(pings.is_complete(), "{}", pings.text);
    let after = left.peer_status(right);
    for (name, carried) in
        [("sent", after.sent - met.sent), ("received", after.received - met.received)]
    {
        // 28 bytes of headers, padding up to 15, 32 of WireGuard, and a keepalive or two.
        let least = count * (payload + 28);
        assert!((least..least + count * 100 + 500).contains(&carried), "{name}: {carried}");
    }
}
