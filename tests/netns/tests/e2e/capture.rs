//! What enters the tunnel leaves it, byte for byte, with offloads and without.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!    ^ captured: what the host sends into it, and gets         ^ captured likewise
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```
//!
//! The same traffic runs with all offloads on, and with all of them off. What was captured is split
//! into packets by the rig's own splitter. In each run, what one host sent into the tunnel is what
//! the other got out of it, in order, flow by flow. Of both runs, the datagrams are the same to the
//! byte (but for the identification, which the kernel draws), and the streams' bytes are.

mod flows;
mod script;

use std::time::Duration;

use netns::{Capture, Family, INTERFACE, Implementation, Pair, Shown, Way, announce, forced_off};

use self::flows::{Flows, Supers, flows};

const PATIENCE: Duration = Duration::from_secs(15);

/// The tunnel's.
const MTU: usize = 1420;

/// How often a run may meet a machine so loaded that queues stand and packets are dropped on purpose.
const TRIES: usize = 5;

/// What one run showed, by way: left to right, right to left.
struct Run {
    flows: [Flows; 2],
    /// Super-packets that went into the tunnel, and that came out of it.
    supers: [[Supers; 2]; 2],
}

#[test]
fn inner_packets_are_the_same_at_both_ends_with_offloads_and_without() {
    let on = run(true);
    let off = run(false);
    for (way, supers) in ["->", "<-"].into_iter().zip(on.supers) {
        let [into, out] = supers;
        announce(&format!("CAPTURE {way} with offloads: {into:?} go in, {out:?} come out"));
        let some = |supers: Supers| supers.tcp > 0 && supers.udp > 0;
        let compared = forced_off().is_some() || some(into) && some(out);
        assert!(compared, "offloads are on, and there are no super-packets");
    }
    let none = [[Supers::default(); 2]; 2];
    assert_eq!(off.supers, none, "offloads are off, and there are super-packets");
    for (way, streams) in [script::FORTH, script::BACK].into_iter().enumerate() {
        let (on, off) = (&on.flows[way], &off.flows[way]);
        assert!(on.datagrams() == off.datagrams(), "datagrams differ with and without offloads");
        for (port, bytes) in streams {
            on.stream_is_whole(port, bytes);
            off.stream_is_whole(port, bytes);
        }
    }
}

/// Plays the script through a new tunnel and holds both captures against each other.
fn run(offloads: bool) -> Run {
    for _ in 0..TRIES {
        let pair = pair(offloads);
        let captures = [&pair.left, &pair.right].map(|s| Capture::start(&s.host, INTERFACE));
        let played = script::play(&pair);
        let [left, right] = captures.map(Capture::finish);
        let ways = [(&left, &right), (&right, &left)].map(|(from, to)| {
            let ((sent, before), (got, after)) = (flows(from, Way::Out), flows(to, Way::In));
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
    panic!("in {TRIES} tries queues stood: the machine is too loaded for this test");
}

fn pair(offloads: bool) -> Pair {
    let pair = Pair::linerate();
    for side in [&pair.left, &pair.right] {
        // Labels are drawn; the script is to be the same each time.
        side.host.run("echo 0 >/proc/sys/net/ipv6/auto_flowlabels");
        side.host.run("echo 1 >/proc/sys/net/ipv4/tcp_ecn");
        if !offloads {
            let program = Implementation::Linerate.path();
            side.host.run(format!("{} set {INTERFACE} offload all off", program.display()));
            assert!(Shown::of(&side.host, INTERFACE).has_off("all"));
        }
    }
    for family in Family::ALL {
        pair.left.reaches(&pair.right, family, PATIENCE);
    }
    pair
}

/// What was dropped on purpose.
///
/// # Panics
/// When anything was dropped for another reason.
fn congestion(pair: &Pair) -> u64 {
    let sides = [&pair.left, &pair.right];
    let drops = sides.map(|side| {
        let full = side.host.device_count(INTERFACE, "tx_dropped");
        let mut drops = Shown::of(&side.host, INTERFACE).drops;
        // The kernel's own IPv6 messages.
        drops.remove("out no peer");
        let queues = ["out congestion", "udp overflow"].map(|reason| drops.remove(reason));
        assert!(drops.is_empty(), "dropped on {}: {drops:?}", side.host.name());
        queues.into_iter().flatten().sum::<u64>() + full
    });
    drops.iter().sum()
}
