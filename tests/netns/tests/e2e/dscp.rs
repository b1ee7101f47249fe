//! The TOS byte of outer packets: handshakes are AF41, as with the kernel's module (its
//! `HANDSHAKE_DSCP`), and all other packets only have ECN marks.

use std::time::Duration;

use netns::{
    Capture, Counter, Direction, Family, INTERFACE, Implementation, Introduction, Message, PORT,
    Pair, burst, eventually, ping,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// AF41 (RFC 2597) in the upper six bits, no ECN.
const HANDSHAKE: u8 = 0x88;

/// Bytes of a cookie reply.
const COOKIE_REPLY: usize = 64;

fn marks<'a>(
    messages: &'a [Message],
    direction: Direction,
    kind: u8,
) -> impl Iterator<Item = u8> + 'a {
    messages.iter().filter(move |m| m.direction == direction && m.kind == kind).map(|m| m.tos)
}

#[test]
fn handshakes_are_af41_and_data_only_has_the_inner_ecn_mark() {
    for outer in Family::ALL {
        let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
        let capture = Capture::start(&pair.left.host, "eth0");
        pair.introduce(Introduction {
            outer: Some(outer),
            left_only: true,
            ..Introduction::default()
        });
        pair.left.reaches(&pair.right, Family::V4, PATIENCE);
        // EF with ECT(0), then AF41 without a mark.
        for tos in ["0xba", "0x88"] {
            let pings = ping(&pair.left.host, format!("-c 3 -i 0.05 -Q {tos} 10.9.0.2"));
            assert!(pings.is_complete(), "{}", pings.text);
        }
        let messages = Message::all(&capture.finish(), PORT);
        assert!(messages.iter().all(|message| message.family == outer));
        for (direction, kind) in [(Direction::Out, 1), (Direction::In, 2)] {
            let seen: Vec<u8> = marks(&messages, direction, kind).collect();
            assert!(!seen.is_empty(), "outer {outer}: no message of kind {kind}");
            assert!(seen.iter().all(|tos| *tos == HANDSHAKE), "outer {outer}: {kind}, {seen:x?}");
        }
        for direction in [Direction::Out, Direction::In] {
            let mut seen: Vec<u8> = marks(&messages, direction, 4).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, [0, 2], "outer {outer}: data, {direction:?}");
        }
    }
}

#[test]
fn cookie_replies_are_not_marked() {
    for outer in Family::ALL {
        let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
        let (left, right) = (&pair.left, &pair.right);
        let endpoint = right.outer.endpoint(outer, PORT);
        let target = endpoint.parse().expect("an address");
        right.add_peer(left, "");
        let capture = Capture::start(&left.host, "eth0");
        let cookies = format!("udp sport {PORT} udp length {}", 8 + COOKIE_REPLY);
        let cookies = Counter::start(&left.host, "cookies", "prerouting", &cookies);
        eventually("the flooded side sends a cookie", PATIENCE, || {
            left.host.run(format!("wg set {INTERFACE} peer {} remove", right.key.public));
            // Packets that arrive while it is stopped are then received at once.
            right.daemon.signal("STOP");
            burst(&left.host, target, 3000);
            left.add_peer(right, &format!("endpoint {endpoint}"));
            ping(&left.host, "-c 1 -W 0.1 10.9.0.2");
            right.daemon.signal("CONT");
            ping(&left.host, "-c 1 -W 1 10.9.0.2");
            cookies.packets() > 0
        });
        let messages = Message::all(&capture.finish(), PORT);
        let seen: Vec<u8> = marks(&messages, Direction::In, 3).collect();
        assert!(!seen.is_empty() && seen.iter().all(|tos| *tos == 0), "outer {outer}: {seen:x?}");
    }
}
