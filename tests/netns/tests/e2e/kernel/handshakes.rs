//! Handshakes from either end.

use netns::{
    Capture, Direction, Family, INTERFACE, Introduction, Message, PORT, announce, ping,
    preshared_key,
};

use super::rig::{Rig, Tunnel};

#[test]
#[ignore = "make kernel-test"]
fn either_end_starts_over_both_families_with_and_without_a_preshared_key() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        for psk in [None, Some(preshared_key())] {
            for by_kernel in [false, true] {
                let introduction = Introduction {
                    outer: Some(outer),
                    preshared_key: psk.as_deref(),
                    left_only: !by_kernel,
                    right_only: by_kernel,
                };
                let tunnel = Tunnel::start(&rig, introduction);
                tunnel.opens(Family::V4, by_kernel);
                tunnel.carries_everything();
                for status in [tunnel.state_at_linerate(), tunnel.state_at_kernel()] {
                    assert!(status.latest_handshake > 0, "{status:?}");
                    assert_eq!(status.preshared_key != "(none)", psk.is_some(), "{status:?}");
                }
                announce(&format!(
                    "KERNEL outer {outer}, {} preshared key, {} starts: ok",
                    if psk.is_some() { "with" } else { "without" },
                    if by_kernel { "the kernel" } else { "linerate" },
                ));
            }
        }
    }
}

#[test]
#[ignore = "make kernel-test"]
fn only_equal_preshared_keys_give_a_session() {
    let rig = Rig::boot();
    for by_kernel in [false, true] {
        let psk = preshared_key();
        let introduction = Introduction {
            preshared_key: Some(&psk),
            left_only: !by_kernel,
            right_only: by_kernel,
            ..Introduction::default()
        };
        let tunnel = Tunnel::start(&rig, introduction);
        let other = rig.left.write("other.key", &preshared_key());
        tunnel.set_peer(&format!("preshared-key {other}"));
        let (host, target) = match by_kernel {
            true => (&rig.right, "10.9.0.1"),
            false => (&rig.left, "10.9.0.2"),
        };
        // One attempt and a retry after five seconds.
        let pings = ping(host, format!("-c 8 -i 1 -W 1 {target}"));
        assert_eq!(pings.received, 0, "{}", pings.text);
        for status in [tunnel.state_at_linerate(), tunnel.state_at_kernel()] {
            assert_eq!(status.latest_handshake, 0, "{status:?}");
        }
        tunnel.set_peer(&format!("preshared-key {}", rig.left.write("same.key", &psk)));
        tunnel.opens(Family::V4, by_kernel);
    }
}

#[test]
#[ignore = "make kernel-test"]
fn both_ends_mark_handshakes_and_data_equally() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        for by_kernel in [false, true] {
            let capture = Capture::start(&rig.left, "eth0");
            let introduction = Introduction {
                outer: Some(outer),
                left_only: !by_kernel,
                right_only: by_kernel,
                ..Introduction::default()
            };
            let tunnel = Tunnel::start(&rig, introduction);
            tunnel.opens(Family::V4, by_kernel);
            // EF with ECT(0), and the same in the answers.
            let target = if by_kernel { "10.9.0.1" } else { "10.4.0.2" };
            let host = if by_kernel { &rig.right } else { &rig.left };
            let pings = ping(host, format!("-c 3 -i 0.05 -W 5 -Q 0xba {target}"));
            assert!(pings.is_complete(), "{}", pings.text);

            let messages = Message::all(&capture.finish(), PORT);
            let marks = |direction, kind| {
                let of_kind =
                    messages.iter().filter(move |m| m.direction == direction && m.kind == kind);
                let mut marks: Vec<u8> = of_kind.map(|message| message.tos).collect();
                marks.sort_unstable();
                marks.dedup();
                marks
            };
            let (initiator, responder) = match by_kernel {
                true => (Direction::In, Direction::Out),
                false => (Direction::Out, Direction::In),
            };
            let what = format!("outer {outer}, {INTERFACE}: {initiator:?} starts");
            assert_eq!(marks(initiator, 1), [0x88], "{what}");
            assert_eq!(marks(responder, 2), [0x88], "{what}");
            for direction in [Direction::In, Direction::Out] {
                assert_eq!(marks(direction, 4), [0, 2], "{what}: data, {direction:?}");
            }
        }
    }
}
