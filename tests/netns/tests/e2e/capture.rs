//! Packets enter and leave the tunnel byte for byte equal, with offloads and without.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!    ^ captured, both directions                             ^ captured, both directions
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```
//!
//! The same traffic runs with all offloads on, and with all of them off. The rig's own splitter splits
//! the captured frames into packets. In each run, the packets that one host sent into the tunnel are
//! those that the other received, in order, flow by flow. Between both runs, the datagrams are equal
//! except for the identification, which the kernel chooses, and the bytes of the streams are equal.

mod flows;
mod script;

use std::time::Duration;

use netns::{
    Capture, Direction, Family, INTERFACE, Implementation, Pair, ShowOutput, announce, forced_off,
};

use self::flows::{Flows, Supers, flows};

const PATIENCE: Duration = Duration::from_secs(15);

/// MTU of the tunnel.
const MTU: usize = 1420;

/// Limit of repeated runs on a machine so loaded that queues build up and packets are dropped on
/// purpose.
const TRIES: usize = 5;

/// Result of a run by direction: left to right, right to left.
struct Run {
    flows: [Flows; 2],
    /// Super-packets that entered the tunnel, and that left it.
    supers: [[Supers; 2]; 2],
}

#[test]
fn inner_packets_are_equal_at_both_ends_with_and_without_offloads() {
    let on = run(true);
    let off = run(false);
    for (direction, supers) in ["->", "<-"].into_iter().zip(on.supers) {
        let [into, out] = supers;
        announce(&format!("CAPTURE {direction} with offloads: {into:?} enter, {out:?} leave"));
        let some = |supers: Supers| supers.tcp > 0 && supers.udp > 0;
        let compared = forced_off().is_some() || some(into) && some(out);
        assert!(compared, "offloads are on, and there are no super-packets");
    }
    let none = [[Supers::default(); 2]; 2];
    assert_eq!(off.supers, none, "offloads are off, and there are super-packets");
    for (direction, streams) in [script::FORTH, script::BACK].into_iter().enumerate() {
        let (on, off) = (&on.flows[direction], &off.flows[direction]);
        assert!(on.datagrams() == off.datagrams(), "datagrams differ with and without offloads");
        for (port, bytes) in streams {
            on.stream_is_whole(port, bytes);
            off.stream_is_whole(port, bytes);
        }
    }
}

/// Plays the script through a new tunnel and compares both captures.
fn run(offloads: bool) -> Run {
    for _ in 0..TRIES {
        let pair = pair(offloads);
        let captures = [&pair.left, &pair.right].map(|s| Capture::start(&s.host, INTERFACE));
        let played = script::play(&pair);
        let [left, right] = captures.map(Capture::finish);
        let ways = [(&left, &right), (&right, &left)].map(|(from, to)| {
            let ((sent, before), (got, after)) =
                (flows(from, Direction::Out), flows(to, Direction::In));
            assert!(!sent.is_empty(), "nothing was sent");
            sent.are_sound(MTU);
            got.are_sound(MTU);
            (sent.same_as(&got).map(|()| sent), [before, after])
        });
        let [(forth, a), (back, b)] = ways;
        let whole = played.and_then(|()| Ok([forth?, back?]));
        match (whole, congestion(&pair)) {
            (Ok(flows), _) => return Run { flows, supers: [a, b] },
            (Err(fault), 0) => panic!("offloads {offloads}: {fault}"),
            (Err(_), drops) => announce(&format!("CAPTURE: again, after {drops} drops")),
        }
    }
    panic!("queues built up in all {TRIES} runs: the machine is too loaded for this test");
}

fn pair(offloads: bool) -> Pair {
    let pair = Pair::linerate();
    for side in [&pair.left, &pair.right] {
        // The kernel chooses flow labels at random; the script must be the same each time.
        side.host.run("echo 0 >/proc/sys/net/ipv6/auto_flowlabels");
        side.host.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn");
        if !offloads {
            let program = Implementation::Linerate.path();
            side.host.run(format!("{} set {INTERFACE} offload all off", program.display()));
            assert!(ShowOutput::of(&side.host, INTERFACE).has_off("all"));
        }
    }
    for family in Family::ALL {
        pair.left.reaches(&pair.right, family, PATIENCE);
    }
    pair
}

/// Number of packets dropped on purpose.
///
/// # Panics
/// If any packet was dropped for another reason.
fn congestion(pair: &Pair) -> u64 {
    let sides = [&pair.left, &pair.right];
    let drops = sides.map(|side| {
        let full = side.host.device_count(INTERFACE, "tx_dropped");
        let mut drops = ShowOutput::of(&side.host, INTERFACE).drops;
        // The kernel's own IPv6 messages.
        drops.remove("out no peer");
        let queues = ["out congestion", "udp overflow"].map(|reason| drops.remove(reason));
        assert!(drops.is_empty(), "dropped on {}: {drops:?}", side.host.name());
        queues.into_iter().flatten().sum::<u64>() + full
    });
    drops.iter().sum()
}
