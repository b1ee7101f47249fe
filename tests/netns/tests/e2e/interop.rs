//! linerate with each implementation, including itself.
//!
//! ```text
//!   left: linerate                                           right: the peer
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```
//!
//! Each case starts both daemons and gives the endpoint to one side only, which therefore starts the
//! handshake. With offloads disabled only one case runs. Tailscale's fork of wireguard-go learns no
//! endpoint from received packets, so both sides have one there. A row of the matrix is printed for
//! each peer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use netns::{
    Family, Implementation, Introduction, Iperf, Pair, Side, announce, forced_off, ping,
    preshared_key,
};

#[test]
fn linerate_talks_to_linerate() {
    talks_to(Implementation::Linerate);
}

#[test]
fn linerate_talks_to_wireguard_go() {
    talks_to(Implementation::WireguardGo);
}

#[test]
fn linerate_talks_to_boringtun() {
    talks_to(Implementation::Boringtun);
}

#[test]
fn linerate_talks_to_gotatun() {
    talks_to(Implementation::Gotatun);
}

#[test]
fn linerate_talks_to_tailscales_wireguard_go() {
    talks_to(Implementation::Tailscale);
}

/// Bytes of a case: enough for many super-packets, in a fraction of a second.
const BYTES: u64 = 32 << 20;

fn talks_to(peer: Implementation) {
    if peer.is_skipped() {
        return;
    }
    let mut row = format!("INTEROP linerate with {peer:<12}");
    let learns = peer != Implementation::Tailscale;
    let mut failed = false;
    let rounds = if forced_off().is_some() { 1 } else { 2 };
    for outer in Family::ALL.into_iter().take(rounds) {
        for psk in [None, Some(preshared_key())].into_iter().take(rounds) {
            row += &format!(" | {outer}{}", if psk.is_some() { "+psk" } else { "" });
            for left_first in [true, false].into_iter().take(rounds) {
                let introduction = Introduction {
                    outer: Some(outer),
                    preshared_key: psk.as_deref(),
                    left_only: left_first && learns,
                    right_only: !left_first && learns,
                };
                let arrow = if left_first { "->" } else { "<-" };
                let case = catch_unwind(AssertUnwindSafe(|| talk(peer, introduction, left_first)));
                failed |= case.is_err();
                row += &match case {
                    Ok(gbps) => format!(" {arrow} ok {gbps:.1}G"),
                    Err(_) => format!(" {arrow} FAILED"),
                };
            }
        }
    }
    announce(&row);
    assert!(!failed, "{row}");
}

/// Runs one case; returns the Gbit/s of the side that started the handshake.
fn talk(peer: Implementation, introduction: Introduction<'_>, left_first: bool) -> f64 {
    let pair = Pair::start(Implementation::Linerate, peer);
    pair.introduce(introduction);
    let (first, second) = match left_first {
        true => (&pair.left, &pair.right),
        false => (&pair.right, &pair.left),
    };
    first.reaches(second, Family::V4, Duration::from_secs(15));
    pings_all(first, second);
    pings_all(second, first);
    // Only linerate is checked: boringtun prints the age of the handshake instead of its time.
    let status = pair.left.peer_status(&pair.right);
    assert!(status.latest_handshake > 0, "{status:?}");
    assert_eq!(
        status.preshared_key != "(none)",
        introduction.preshared_key.is_some(),
        "{status:?}"
    );
    let address = second.inner.of(Family::V4);
    let run = Iperf { client: &first.host, server: &second.host, address, seconds: 1, options: "" };
    run.carry(BYTES).gbps()
}

fn pings_all(from: &Side, to: &Side) {
    for inner in Family::ALL {
        let pings = ping(&from.host, format!("-c 3 -i 0.05 -W 2 -s 1200 {}", to.inner.of(inner)));
        assert!(pings.is_complete(), "{} inside {inner}: {}", from.host.name(), pings.text);
    }
}
