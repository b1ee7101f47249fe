//! Ends that are flooded with handshake messages and send cookies.

use netns::{
    Capture, Counter, Direction, Family, Flood, INTERFACE, Introduction, Message, PORT, burst,
};
use netns::{announce, eventually, ping};

use super::rig::{PATIENCE, Rig, Tunnel};

/// Bytes of a cookie reply and its UDP header.
const COOKIE_REPLY: usize = 8 + 64;

#[test]
#[ignore = "make kernel-test"]
fn a_flooded_kernel_sends_a_cookie_and_linerate_connects_with_it() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let introduction =
            Introduction { outer: Some(outer), left_only: true, ..Introduction::default() };
        let tunnel = Tunnel::start(&rig, introduction);
        let target = tunnel.outer.endpoint(outer, PORT).parse().expect("an address");
        let cookies = format!("udp sport {PORT} udp length {COOKIE_REPLY}");
        let cookies =
            Counter::start(&rig.left, &format!("cookies_{outer}"), "prerouting", &cookies);
        let capture = Capture::start(&rig.left, "eth0");
        let flood = Flood::start(&rig.left, target, 400);
        eventually("the flooded kernel sends a cookie", PATIENCE, || {
            rig.left.run(format!("wg set {INTERFACE} peer {} remove", tunnel.key.public));
            tunnel.set_peer("");
            tunnel.set_endpoint(outer);
            ping(&rig.left, "-c 1 -W 1 10.9.0.2");
            cookies.packets() > 0
        });
        eventually("linerate connects during the flood", PATIENCE, || {
            ping(&rig.left, "-c 1 -W 1 10.9.0.2").is_complete()
        });
        let sent = flood.finish();
        check_cookies(capture, outer, "the kernel", Direction::In, sent);
        tunnel.carries_everything();
    }
}

#[test]
#[ignore = "make kernel-test"]
fn a_flooded_linerate_sends_a_cookie_and_the_kernel_connects_with_it() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let introduction =
            Introduction { outer: Some(outer), right_only: true, ..Introduction::default() };
        let tunnel = Tunnel::start(&rig, introduction);
        let target = tunnel.left.outer.endpoint(outer, PORT).parse().expect("an address");
        let cookies = format!("udp sport {PORT} udp length {COOKIE_REPLY}");
        let cookies = Counter::start(&rig.left, &format!("cookies_{outer}"), "output", &cookies);
        let capture = Capture::start(&rig.left, "eth0");
        eventually("the flooded linerate sends a cookie", PATIENCE, || {
            // A kernel that connected without a cookie starts over.
            tunnel.configure_guest(introduction);
            // Packets that arrive while it is stopped are then received at once.
            tunnel.left.daemon.signal("STOP");
            let before = cookies.packets();
            burst(&rig.left, target, 3000);
            ping(&rig.right, "-c 2 -i 0.5 -W 1 10.9.0.1");
            tunnel.left.daemon.signal("CONT");
            ping(&rig.right, "-c 1 -W 1 10.9.0.1");
            cookies.packets() > before
        });
        let flood = Flood::start(&rig.left, target, 400);
        eventually("the kernel connects during the flood", PATIENCE, || {
            ping(&rig.right, "-c 1 -W 1 10.9.0.1").is_complete()
        });
        let sent = flood.finish();
        check_cookies(capture, outer, "linerate", Direction::Out, sent);
        tunnel.carries_everything();
    }
}

/// Checks that cookie replies are not marked, and that a handshake with a second MAC followed one.
fn check_cookies(capture: Capture, outer: Family, flooded: &str, direction: Direction, sent: u64) {
    /// Range of an initiation's second MAC.
    const MAC2: std::ops::Range<usize> = 132..148;
    let messages = Message::all(&capture.finish(), PORT);
    let first = messages.iter().position(|m| m.direction == direction && m.kind == 3);
    let first = first.expect("a cookie was sent");
    let replies: Vec<_> =
        messages.iter().filter(|m| m.direction == direction && m.kind == 3).collect();
    assert!(replies.iter().all(|m| m.tos == 0), "outer {outer}: a cookie reply is marked");
    let is_cooked = |m: &&Message| {
        m.tos == 0x88 && m.kind == 1 && m.direction != direction && m.payload[MAC2] != [0; 16]
    };
    let cooked = messages[first..].iter().filter(is_cooked).count();
    announce(&format!(
        "KERNEL outer {outer}, {flooded} is flooded: {} cookie replies, {cooked} initiations with a \
         cookie, {sent} messages of the flood",
        replies.len()
    ));
    assert!(cooked > 0, "outer {outer}: no initiation with a cookie");
}
