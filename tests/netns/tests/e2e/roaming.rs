//! Peers that move, servers with several addresses, and NAT.
//!
//! Most tests use `Pair` (one cable, 10.1.0.0/24) or its routed form:
//!
//! ```text
//!   left 10.1.0.1 ---- 10.1.0.254 router 10.2.0.254 ---- 10.2.0.2 right
//!        fd01::1  ---- fd01::254         fd02::254  ---- fd02::2
//! ```
//!
//! For route changes, right gets a second link to the router:
//!
//! ```text
//!                               router 10.3.0.254 ---- 10.3.0.2 right (eth1)
//!                                      fd03::254  ---- fd03::2
//! ```
//!
//! For NAT, the router hides left behind 10.2.0.254 and deletes a UDP mapping after 2 s.

use std::time::Duration;

use netns::{
    Addresses, Counter, Family, Host, INTERFACE, Implementation, Introduction, PORT, Pair, Pinging,
    Stopwatch, address, cable, eventually, ping,
};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Seconds after which the NAT deletes a mapping.
const NAT_SECONDS: u32 = 2;

fn left_starts(outer: Family) -> Introduction<'static> {
    Introduction { outer: Some(outer), left_only: true, ..Introduction::default() }
}

#[test]
fn the_server_follows_a_client_that_changes_its_address() {
    for (outer, old, new, length) in
        [(Family::V4, "10.1.0.1", "10.1.0.7", 24), (Family::V6, "fd01::1", "fd01::7", 64)]
    {
        let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
        pair.introduce(left_starts(outer));
        let (left, right) = (&pair.left, &pair.right);
        left.reaches(right, Family::V4, PATIENCE);
        let pings = Pinging::start(&left.host, "move", "-i 0.1 10.9.0.2");
        pings.wait_for_replies(5, PATIENCE);
        assert!(right.peer_status(left).endpoint.contains(old));

        left.host.run(format!("ip address del {old}/{length} dev eth0"));
        address(&left.host, "eth0", &format!("{new}/{length}"));
        pings.wait_for_replies(10, PATIENCE);
        let endpoint = right.peer_status(left).endpoint;
        assert!(endpoint.contains(new), "outer {outer}: still at {endpoint}");
        let pings = pings.finish();
        assert!(pings.sent - pings.received <= 5, "outer {outer}: {}", pings.text);
        right.reaches(left, Family::V4, PATIENCE);
    }
}

#[test]
fn the_server_follows_a_client_that_changes_its_port() {
    let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    pair.introduce(left_starts(Family::V4));
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let pings = Pinging::start(&left.host, "port", "-i 0.1 10.9.0.2");
    pings.wait_for_replies(5, PATIENCE);
    left.host.run(format!("wg set {INTERFACE} listen-port 40404"));
    pings.wait_for_replies(10, PATIENCE);
    assert_eq!(right.peer_status(left).endpoint, "10.1.0.1:40404");
    let pings = pings.finish();
    assert!(pings.sent - pings.received <= 3, "{}", pings.text);
}

#[test]
fn a_server_with_two_addresses_answers_from_the_one_reached() {
    for (outer, second, length, ip) in
        [(Family::V4, "10.1.0.9", 24, "ip"), (Family::V6, "fd01::9", 64, "ip6")]
    {
        let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
        let (left, right) = (&pair.left, &pair.right);
        address(&right.host, "eth0", &format!("{second}/{length}"));
        let host = if outer == Family::V4 { second.to_owned() } else { format!("[{second}]") };
        left.add_peer(right, &format!("endpoint {host}:{PORT}"));
        right.add_peer(left, "");
        let from = |address: &str| format!("udp sport {PORT} {ip} saddr {address}");
        let reached = Counter::start(&left.host, "reached", "prerouting", &from(second));
        let first = right.outer.of(outer);
        let other = Counter::start(&left.host, "other", "prerouting", &from(first));

        left.reaches(right, Family::V4, PATIENCE);
        // It does not affect the route to left.
        address(&right.host, "lo", "192.0.2.1/32");
        right.host.run("ip route add 198.51.100.0/24 dev lo");
        for side in [(right, "10.9.0.1"), (left, "10.9.0.2")] {
            let pings = ping(&side.0.host, format!("-c 5 -i 0.3 {}", side.1));
            assert!(pings.is_complete(), "outer {outer}: {}", pings.text);
        }
        let (reached, other) = (reached.packets(), other.packets());
        assert!(
            reached > 5 && other == 0,
            "outer {outer}: {reached} from the address reached, {other} from the other"
        );
        assert_eq!(left.peer_status(right).endpoint, format!("{host}:{PORT}"));
    }
}

/// Gives right its second link to the router, and routes to left over the first.
fn add_second_link(router: &Host, right: &Host, outer: Family) {
    cable(router, "r3", right, "eth1", 1500);
    Addresses::new(3, 254).assign(router, "r3");
    Addresses::new(3, 2).assign(right, "eth1");
    let (to, gateway) = (net_of_left(outer), Addresses::new(2, 254));
    right.run(format!("ip route add {to} via {} dev eth0", gateway.of(outer)));
}

/// Routes right to left over its second link.
fn use_second_link(right: &Host, outer: Family) {
    let (to, gateway) = (net_of_left(outer), Addresses::new(3, 254));
    right.run(format!("ip route replace {to} via {} dev eth1", gateway.of(outer)));
}

fn net_of_left(outer: Family) -> &'static str {
    if outer == Family::V4 { "10.1.0.0/24" } else { "fd01::/64" }
}

#[test]
fn after_a_route_change_the_server_uses_the_new_link() {
    for outer in Family::ALL {
        let (pair, router) = Pair::routed();
        let (left, right) = (&pair.left, &pair.right);
        add_second_link(&router, &right.host, outer);
        pair.introduce(left_starts(outer));
        left.reaches(right, Family::V4, PATIENCE);

        use_second_link(&right.host, outer);
        let udp = format!("oifname eth1 udp sport {PORT}");
        let new_way = Counter::start(&right.host, "new_way", "output", &udp);
        right.reaches(left, Family::V4, PATIENCE);
        left.reaches(right, Family::V4, PATIENCE);
        assert!(new_way.packets() > 0, "outer {outer}: nothing left by eth1");
    }
}

#[test]
fn after_its_address_is_removed_the_server_sends_from_another() {
    for (outer, gone) in [(Family::V4, "10.2.0.2/24"), (Family::V6, "fd02::2/64")] {
        let (pair, router) = Pair::routed();
        let (left, right) = (&pair.left, &pair.right);
        add_second_link(&router, &right.host, outer);
        pair.introduce(left_starts(outer));
        left.reaches(right, Family::V4, PATIENCE);

        use_second_link(&right.host, outer);
        right.host.run(format!("ip address del {gone} dev eth0"));
        right.reaches(left, Family::V4, PATIENCE);
        let endpoint = left.peer_status(right).endpoint;
        assert_eq!(endpoint, Addresses::new(3, 2).endpoint(outer, PORT));
        left.reaches(right, Family::V4, PATIENCE);
    }
}

/// Hides left behind the router's address towards right, with short-lived mappings.
fn hide_left(router: &Host, masquerade: &str) {
    let rules = format!(
        "table ip nat {{\n chain out {{\n  type nat hook postrouting priority 100;\n  \
         oifname r2 {masquerade}\n }}\n}}\n"
    );
    let path = router.write("nat.nft", &rules);
    router.run(format!("nft -f {path}"));
    for timeout in ["udp_timeout", "udp_timeout_stream"] {
        let key = format!("/proc/sys/net/netfilter/nf_conntrack_{timeout}");
        router.run(format!("echo {NAT_SECONDS} >{key}"));
    }
}

#[test]
fn persistent_keepalive_keeps_a_client_behind_nat_reachable() {
    let (pair, router) = Pair::routed();
    hide_left(&router, "masquerade");
    pair.introduce(left_starts(Family::V4));
    let (left, right) = (&pair.left, &pair.right);
    let peer = &right.key.public;
    left.host.run(format!("wg set {INTERFACE} peer {peer} persistent-keepalive 1"));
    left.reaches(right, Family::V4, PATIENCE);
    assert!(right.peer_status(left).endpoint.starts_with("10.2.0.254:"));

    // Five keepalives of 32 bytes, a second apart: longer than the mapping lasts without them.
    let before = right.peer_status(left).received;
    eventually("keepalives arrive", PATIENCE, || {
        right.peer_status(left).received >= before + 5 * 32
    });
    let pings = ping(&right.host, "-c 3 -i 0.1 -W 2 10.9.0.1");
    assert!(pings.is_complete(), "{}", pings.text);
}

#[test]
fn without_keepalive_the_mapping_expires_until_the_client_sends() {
    let (pair, router) = Pair::routed();
    hide_left(&router, "masquerade");
    pair.introduce(left_starts(Family::V4));
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);

    // WireGuard answers one-sided data by a keepalive 10 s later; the mapping expires well before.
    let watch = Stopwatch::start();
    let silence = Duration::from_secs(u64::from(NAT_SECONDS) + 1);
    eventually("the mapping is old", PATIENCE, || watch.elapsed() > silence);
    assert_eq!(ping(&right.host, "-c 2 -i 0.1 -W 0.5 10.9.0.1").received, 0);

    let pings = ping(&left.host, "-c 3 -i 0.1 -W 2 10.9.0.2");
    assert!(pings.is_complete(), "{}", pings.text);
    right.reaches(left, Family::V4, PATIENCE);
}

#[test]
fn the_server_follows_a_client_behind_a_nat_that_changes_its_port() {
    let (pair, router) = Pair::routed();
    hide_left(&router, "udp sport 51820 masquerade to :41000");
    pair.introduce(left_starts(Family::V4));
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    assert_eq!(right.peer_status(left).endpoint, "10.2.0.254:41000");

    router.run("nft delete table ip nat");
    hide_left(&router, "udp sport 51820 masquerade to :42000");
    let watch = Stopwatch::start();
    let silence = Duration::from_secs(u64::from(NAT_SECONDS) + 1);
    eventually("the mapping is old", PATIENCE, || watch.elapsed() > silence);
    let pings = ping(&left.host, "-c 3 -i 0.1 -W 2 10.9.0.2");
    assert!(pings.is_complete(), "{}", pings.text);
    assert_eq!(right.peer_status(left).endpoint, "10.2.0.254:42000");
    right.reaches(left, Family::V4, PATIENCE);
}
