//! Ends that are flooded with handshake messages, and ask for cookies.

use netns::{Capture, Counter, Family, Flood, INTERFACE, Meeting, Message, PORT, Way, burst};
use netns::{announce, eventually, ping};

use super::rig::{PATIENCE, Rig, Tunnel};

/// Bytes of a cookie reply and its UDP header.
const COOKIE_REPLY: usize = 8 + 64;

#[test]
#[ignore = "make kernel-test"]
fn a_flooded_kernel_asks_for_a_cookie_and_linerate_gets_in_with_it() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let meeting = Meeting { outer: Some(outer), left_only: true, ..Meeting::default() };
        let tunnel = Tunnel::start(&rig, meeting);
        let target = tunnel.outer.endpoint(outer, PORT).parse().expect("an address");
        let cookies = format!("udp sport {PORT} udp length {COOKIE_REPLY}");
        let cookies =
            Counter::start(&rig.left, &format!("cookies_{outer}"), "prerouting", &cookies);
        let capture = Capture::start(&rig.left, "eth0");
        let flood = Flood::start(&rig.left, target, 400);
        eventually("the flooded kernel asks for a cookie", PATIENCE, || {
            rig.left.run(format!("wg set {INTERFACE} peer {} remove", tunnel.key.public));
            tunnel.set_peer("");
            tunnel.call(outer);
            ping(&rig.left, "-c 1 -W 1 10.9.0.2");
            cookies.packets() > 0
        });
        eventually("linerate gets in beside the flood", PATIENCE, || {
            ping(&rig.left, "-c 1 -W 1 10.9.0.2").is_complete()
        });
        let sent = flood.finish();
        tells(capture, outer, "the kernel", Way::In, sent);
        tunnel.carries_everything();
    }
}

#[test]
#[ignore = "make kernel-test"]
fn a_flooded_linerate_asks_for_a_cookie_and_the_kernel_gets_in_with_it() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let meeting = Meeting { outer: Some(outer), right_only: true, ..Meeting::default() };
        let tunnel = Tunnel::start(&rig, meeting);
        let target = tunnel.left.outer.endpoint(outer, PORT).parse().expect("an address");
        let cookies = format!("udp sport {PORT} udp length {COOKIE_REPLY}");
        let cookies = Counter::start(&rig.left, &format!("cookies_{outer}"), "output", &cookies);
        let capture = Capture::start(&rig.left, "eth0");
        eventually("the flooded linerate asks for a cookie", PATIENCE, || {
            // A kernel that got in unasked begins again.
            tunnel.configure_guest(meeting);
            // What comes while it stands still is there all at once.
            tunnel.left.daemon.signal("STOP");
            let before = cookies.packets();
            burst(&rig.left, target, 3000);
            ping(&rig.right, "-c 2 -i 0.5 -W 1 10.9.0.1");
            tunnel.left.daemon.signal("CONT");
            ping(&rig.right, "-c 1 -W 1 10.9.0.1");
            cookies.packets() > before
        });
        let flood = Flood::start(&rig.left, target, 400);
        eventually("the kernel gets in beside the flood", PATIENCE, || {
            ping(&rig.right, "-c 1 -W 1 10.9.0.1").is_complete()
        });
        let sent = flood.finish();
        tells(capture, outer, "linerate", Way::Out, sent);
        tunnel.carries_everything();
    }
}

/// Sees that cookie replies are not marked, and that a handshake with a second MAC came behind one.
fn tells(capture: Capture, outer: Family, flooded: &str, way: Way, sent: u64) {
    /// Where the second MAC of an initiation stands.
    const MAC2: std::ops::Range<usize> = 132..148;
    let messages = Message::all(&capture.finish(), PORT);
    let first = messages.iter().position(|m| m.way == way && m.kind == 3);
    let first = first.expect("a cookie was asked for");
    let replies: Vec<_> = messages.iter().filter(|m| m.way == way && m.kind == 3).collect();
    assert!(replies.iter().all(|m| m.tos == 0), "outer {outer}: a cookie reply is marked");
    let is_cooked =
        |m: &&Message| m.tos == 0x88 && m.kind == 1 && m.way != way && m.payload[MAC2] != [0; 16];
    let cooked = messages[first..].iter().filter(is_cooked).count();
    announce(&format!(
        "KERNEL outer {outer}, {flooded} is flooded: {} cookie replies, {cooked} initiations with a \
         cookie, {sent} messages of the flood",
        replies.len()
    ));
    assert!(cooked > 0, "outer {outer}: no initiation with a cookie");
}
