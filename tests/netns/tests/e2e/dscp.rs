//! The TOS byte of outer packets: handshakes are AF41, as those of the kernel's module (its
//! `HANDSHAKE_DSCP`), and all else has ECN alone.

use std::time::Duration;

use netns::{
    Capture, Counter, Family, INTERFACE, Implementation, Meeting, Message, PORT, Pair, Way, burst,
    eventually, ping,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// AF41 (RFC 2597) in the upper six bits, no ECN.
const HANDSHAKE: u8 = 0x88;

/// Bytes of a cookie reply.
const COOKIE_REPLY: usize = 64;

fn marks<'a>(messages: &'a [Message], way: Way, kind: u8) -> impl Iterator<Item = u8> + 'a {
    messages.iter().filter(move |m| m.way == way && m.kind == kind).map(|m| m.tos)
}

#[test]
fn handshakes_are_af41_and_data_has_the_ecn_mark_of_its_inner_packet_alone() {
    for outer in Family::ALL {
        let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
        let capture = Capture::start(&pair.left.host, "eth0");
        pair.introduce(Meeting { outer: Some(outer), left_only: true, ..Meeting::default() });
        pair.left.reaches(&pair.right, Family::V4, PATIENCE);
        // EF with ECT(0), then AF41 without a mark.
        for tos in ["0xba", "0x88"] {
            let pings = ping(&pair.left.host, format!("-c 3 -i 0.05 -Q {tos} 10.9.0.2"));
            assert!(pings.is_complete(), "{}", pings.text);
        }
        let messages = Message::all(&capture.finish(), PORT);
        assert!(messages.iter().all(|message| message.family == outer));
        for (way, kind) in [(Way::Out, 1), (Way::In, 2)] {
            let seen: Vec<u8> = marks(&messages, way, kind).collect();
            assert!(!seen.is_empty(), "outer {outer}: no message of kind {kind}");
            assert!(seen.iter().all(|tos| *tos == HANDSHAKE), "outer {outer}: {kind}, {seen:x?}");
        }
        for way in [Way::Out, Way::In] {
            let mut seen: Vec<u8> = marks(&messages, way, 4).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, [0, 2], "outer {outer}: data, {way:?}");
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
        eventually("the flooded side asks for a cookie", PATIENCE, || {
            left.host.run(format!("wg set {INTERFACE} peer {} remove", right.key.public));
            // What comes while it stands still is there all at once.
            right.daemon.signal("STOP");
            burst(&left.host, target, 3000);
            left.add_peer(right, &format!("endpoint {endpoint}"));
            ping(&left.host, "-c 1 -W 0.1 10.9.0.2");
            right.daemon.signal("CONT");
            ping(&left.host, "-c 1 -W 1 10.9.0.2");
            cookies.packets() > 0
        });
        let messages = Message::all(&capture.finish(), PORT);
        let seen: Vec<u8> = marks(&messages, Way::In, 3).collect();
        assert!(!seen.is_empty() && seen.iter().all(|tos| *tos == 0), "outer {outer}: {seen:x?}");
    }
}
