//! Ends that move during a ping.

use netns::{Family, INTERFACE, Introduction, PORT, Pinging, address, eventually};

use super::rig::{PATIENCE, Rig, Tunnel};

/// Old and new address of left and of the guest, and the prefix length.
fn addresses(outer: Family, host: u8) -> (String, String, u8) {
    match outer {
        Family::V4 => (format!("10.1.0.{host}"), format!("10.1.0.{}", host + 6), 24),
        Family::V6 => (format!("fd01::{host}"), format!("fd01::{}", host + 6), 64),
    }
}

#[test]
#[ignore = "make kernel-test"]
fn the_kernel_follows_linerate_to_another_address_and_another_port() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let introduction =
            Introduction { outer: Some(outer), left_only: true, ..Introduction::default() };
        let tunnel = Tunnel::start(&rig, introduction);
        tunnel.opens(Family::V4, false);
        let pings = Pinging::start(&rig.left, &format!("moves-{outer}"), "-i 0.1 10.4.0.2");
        pings.wait_for_replies(5, PATIENCE);

        let (old, new, length) = addresses(outer, 1);
        rig.left.run(format!("ip address del {old}/{length} dev eth0"));
        address(&rig.left, "eth0", &format!("{new}/{length}"));
        follows(&tunnel, &new);
        pings.wait_for_replies(5, PATIENCE);
        rig.left.run(format!("wg set {INTERFACE} listen-port 40404"));
        follows(&tunnel, ":40404");
        pings.wait_for_replies(5, PATIENCE);
        pings.finish();
        // The kernel sends to linerate's current address.
        tunnel.opens(Family::V6, true);
        tunnel.carries_everything();
        rig.left.run(format!("ip address del {new}/{length} dev eth0"));
        address(&rig.left, "eth0", &format!("{old}/{length}"));
    }
}

fn follows(tunnel: &Tunnel<'_>, place: &str) {
    let what = format!("the kernel follows to {place}");
    eventually(&what, PATIENCE, || tunnel.state_at_kernel().endpoint.contains(place));
}

#[test]
#[ignore = "make kernel-test"]
fn linerate_follows_the_kernel_to_another_address_and_another_port() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let introduction =
            Introduction { outer: Some(outer), right_only: true, ..Introduction::default() };
        let tunnel = Tunnel::start(&rig, introduction);
        tunnel.opens(Family::V4, true);
        let pings = Pinging::start(&rig.right, &format!("moves-{outer}"), "-i 0.1 10.9.0.1");
        pings.wait_for_replies(5, PATIENCE);

        let (old, new, length) = addresses(outer, 2);
        rig.guest.run(format!("ip address del {old}/{length} dev eth0"));
        rig.guest.run(format!("ip address add {new}/{length} dev eth0"));
        let seen = |place: &str| {
            let what = format!("linerate follows to {place}");
            eventually(&what, PATIENCE, || tunnel.state_at_linerate().endpoint.contains(place));
        };
        seen(&new);
        pings.wait_for_replies(5, PATIENCE);
        rig.guest.run(format!("wg set {INTERFACE} listen-port 40404"));
        seen(":40404");
        pings.wait_for_replies(5, PATIENCE);
        pings.finish();
        assert_ne!(PORT, 40404);
        tunnel.opens(Family::V6, false);
        tunnel.carries_everything();
        rig.guest.run(format!("ip address del {new}/{length} dev eth0"));
        rig.guest.run(format!("ip address add {old}/{length} dev eth0"));
    }
}
