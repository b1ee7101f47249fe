//! ECN across the tunnel, both ways (RFC 6040, normal mode).
//!
//! ```text
//!   left                     router                    right
//!   wg0 10.9.0.1 . . . . . . . . . . . . . . . . . . . wg0 10.9.0.2
//!   eth0 10.1.0.1 ---- r1 10.1.0.254
//!                      r2 10.2.0.254 ----------------- eth0 10.2.0.2
//!
//!   the router counts the outer mark, and may set CE   right counts the inner mark
//! ```

use std::time::Duration;

use netns::{Counter, Family, Host, Introduction, Iperf, PORT, Pair, ping};

const PATIENCE: Duration = Duration::from_secs(15);

/// The marks in nft's syntax, with the TOS byte for ping.
const MARKS: [(&str, u8); 4] = [("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

/// nft's name of the header.
fn header(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

fn echo_request(family: Family) -> &'static str {
    if family == Family::V4 { "icmp type echo-request" } else { "icmpv6 type echo-request" }
}

fn met(outer: Family) -> (Pair, Host) {
    let (pair, router) = Pair::routed();
    pair.introduce(Introduction { outer: Some(outer), ..Introduction::default() });
    for inner in Family::ALL {
        pair.left.reaches(&pair.right, inner, PATIENCE);
    }
    (pair, router)
}

/// Makes the router set CE on packets of this family to right that match `what`.
fn congest(router: &Host, family: Family, what: &str) {
    let table = format!(
        "table inet congest_{family} {{\n chain touch {{\n  \
         type filter hook forward priority 0;\n  \
         oifname r2 {what} {} ecn set ce\n }}\n}}\n",
        header(family)
    );
    let path = router.write("congest.nft", &table);
    router.run(format!("nft -f {path}"));
}

#[test]
fn the_counters_count_marks_and_the_router_sets_ce_on_a_bare_link() {
    let (left, router, right) = Pair::routed_hosts();
    for (family, target) in [(Family::V4, "10.2.0.2"), (Family::V6, "fd02::2")] {
        for (mark, tos) in MARKS {
            let rule = format!("{} {} ecn {mark}", echo_request(family), header(family));
            let name = format!("{mark}_{family}").replace('-', "_");
            let seen = Counter::start(&right, &name, "input", &rule);
            assert!(ping(&left, format!("-c 3 -i 0.05 -Q {tos} {target}")).is_complete());
            assert_eq!(seen.packets(), 3, "{mark}, {family}");
        }
    }
    for (family, target) in [(Family::V4, "10.2.0.2"), (Family::V6, "fd02::2")] {
        congest(&router, family, "");
        let rule = format!("{} {} ecn ce", echo_request(family), header(family));
        let seen = Counter::start(&right, &format!("marked_{family}"), "input", &rule);
        assert!(ping(&left, format!("-c 3 -i 0.05 -Q 2 {target}")).is_complete());
        assert_eq!(seen.packets(), 3, "{family}");
    }
}

#[test]
fn the_mark_of_an_inner_packet_is_copied_to_the_outer_one() {
    for outer in Family::ALL {
        let (pair, router) = met(outer);
        for inner in Family::ALL {
            for (mark, tos) in MARKS {
                let rule = format!("udp dport {PORT} iifname r1 {} ecn {mark}", header(outer));
                let name = format!("{mark}_{inner}").replace('-', "_");
                let seen = Counter::start(&router, &name, "forward", &rule);
                let target = pair.right.inner.of(inner);
                let pings = ping(&pair.left.host, format!("-c 5 -i 0.3 -Q {tos} {target}"));
                assert!(pings.is_complete(), "{}", pings.text);
                let count = seen.packets();
                assert!(count >= 5, "{mark}, inside {inner}, outside {outer}: {count} of 5");
            }
        }
    }
}

#[test]
fn an_outer_congestion_mark_is_copied_to_the_inner_packet() {
    for outer in Family::ALL {
        let (pair, router) = met(outer);
        let ect = format!("udp dport {PORT} {} ecn ect0", header(outer));
        congest(&router, outer, &ect);
        for inner in Family::ALL {
            let rule = format!("iifname wg0 {} {} ecn ce", echo_request(inner), header(inner));
            let name = format!("inner_{inner}");
            let seen = Counter::start(&pair.right.host, &name, "input", &rule);
            let target = pair.right.inner.of(inner);
            let pings = ping(&pair.left.host, format!("-c 4 -i 0.05 -Q 2 {target}"));
            assert!(pings.is_complete(), "{}", pings.text);
            assert_eq!(seen.packets(), 4, "inside {inner}, outside {outer}");
        }
    }
}

#[test]
fn an_inner_packet_without_ecn_is_dropped_if_the_outer_one_is_marked() {
    let (pair, router) = met(Family::V4);
    congest(&router, Family::V4, &format!("udp dport {PORT}"));
    let pings = ping(&pair.left.host, "-c 3 -i 0.1 -W 0.5 -Q 0 10.9.0.2");
    assert_eq!(pings.received, 0, "{}", pings.text);
    let pings = ping(&pair.left.host, "-c 3 -i 0.1 -W 2 -Q 2 10.9.0.2");
    assert!(pings.is_complete(), "{}", pings.text);
}

#[test]
fn a_tcp_stream_in_super_packets_has_its_marks_in_both_directions() {
    let (pair, router) = met(Family::V4);
    let (left, right) = (&pair.left, &pair.right);
    for side in [left, right] {
        side.host.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn");
    }
    let outside = format!("udp dport {PORT} iifname r1 ip ecn ect0");
    let outside = Counter::start(&router, "tcp_outside", "forward", &outside);
    // One in a hundred, as from a loaded queue.
    congest(&router, Family::V4, &format!("udp dport {PORT} ip ecn ect0 numgen inc mod 100 == 0"));
    let inside = "iifname wg0 tcp dport 5201 ip ecn ce";
    let inside = Counter::start(&right.host, "tcp_inside", "input", inside);
    let (client, server) = (&left.host, &right.host);
    let rate = Iperf { client, server, address: "10.9.0.2", seconds: 2, options: "" }.run();
    assert!(rate.gbps() > 0.01, "{rate:?}");
    assert!(outside.packets() > 100, "{} outer packets have ECT(0)", outside.packets());
    assert!(inside.packets() > 0, "no mark arrived inside");
}

#[test]
fn the_dscp_of_inner_packets_does_not_leak() {
    let (pair, router) = met(Family::V4);
    let expedited = format!("udp dport {PORT} ip dscp ef");
    let seen = Counter::start(&router, "dscp", "forward", &expedited);
    assert!(ping(&pair.left.host, "-c 3 -i 0.1 -Q 0xb8 10.9.0.2").is_complete());
    assert_eq!(seen.packets(), 0);
}
