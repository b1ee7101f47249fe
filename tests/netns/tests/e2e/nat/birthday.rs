//! Birthday probing: one node is behind a box with another port for each destination, the other
//! behind a box that only accepts ports to which it has sent.

use std::thread;
use std::time::Duration;

use netns::{
    Counter, Family, Iperf, Member, MemberKind, Nat, Path, Pinging, Stopwatch, Tailnet, Uplink,
    deadline, eventually, ping,
};

use crate::nat::changes::{OFTEN, PATIENCE};

/// Time in which nearly all pairs connect: some seconds of other attempts, and at most 12 s of
/// probes.
const LIMIT: Duration = Duration::from_secs(30);

/// Limit of probes a second, with a margin for a busy machine that catches up.
const PACE: u32 = 220;

/// Bytes over each found path.
const BYTES: u64 = 16 << 20;

/// The probes of a host.
const PROBES: &str = "oifname eth0 udp dport 1024-65535 ct state new";

fn sockets(member: &Member) -> usize {
    member.host.run("ss -H -uan").lines().count()
}

fn pair(tailnet: &Tailnet, number: usize, nats: [Nat; 2], flags: &str) -> [Member; 2] {
    [0, 1].map(|at| {
        let name = format!("{:?}-{number}-{at}", nats[at]).to_lowercase();
        let host = tailnet.host(&name, Uplink::Behind(nats[at]));
        Member::join(tailnet, host, MemberKind::Linerate, flags)
    })
}

/// Time until both send directly, while the first pings the other.
fn time_to_direct(ends: [&Member; 2], within: Duration) -> Option<Duration> {
    let (watch, target) = (Stopwatch::start(), ends[1].addresses.of(Family::V4));
    let is_direct = |from: &Member, to| matches!(from.path_to(to), Path::Direct(_));
    while watch.elapsed() < within {
        ping(&ends[0].host, format!("-c 2 -i 0.3 -W 1 {target}"));
        if is_direct(ends[0], ends[1]) && is_direct(ends[1], ends[0]) {
            return Some(watch.elapsed());
        }
    }
    None
}

#[test]
fn birthday_probing_connects_a_symmetric_and_a_port_restricted_nat() {
    let Some(tailnet) = Tailnet::start() else { return };
    let kinds = [
        [Nat::Symmetric, Nat::PortRestricted],
        [Nat::PortRestricted, Nat::Symmetric],
        [Nat::WithIpv6, Nat::WithoutInputDrop],
        [Nat::Symmetric, Nat::Double],
        [Nat::Forgetful, Nat::WithIpv6],
        [Nat::Symmetric, Nat::ConeWithIpv6],
        [Nat::Symmetric, Nat::Nat64],
    ];
    let kinds = kinds.into_iter().filter(|nats| !nats.iter().any(|nat| nat.is_missing()));
    let mut pairs: Vec<_> =
        (0..).zip(kinds).map(|(at, nats)| (nats, pair(&tailnet, at, nats, ""))).collect();
    let meets = |(nats, [one, other]): &([Nat; 2], [Member; 2])| {
        let took = time_to_direct([one, other], deadline(LIMIT));
        println!("{nats:?} after {took:?}");
        took.is_some()
    };
    let have_met: Vec<bool> = thread::scope(|scope| {
        let threads: Vec<_> = pairs.iter().map(|one| scope.spawn(|| meets(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("both are asked")).collect()
    });
    // A busy machine may send too few probes in time. Pairs that did not connect would retry
    // minutes later.
    for (number, (first, has_met)) in (100..).zip(pairs.iter_mut().zip(have_met)) {
        if !has_met {
            let nats = first.0;
            *first = (nats, pair(&tailnet, number, nats, ""));
            let [one, other] = &first.1;
            assert!(meets(first), "{nats:?}, a second pair: {}", why(one, other));
        }
    }
    for (nats, [one, other]) in &pairs {
        let is_hard = |nat| matches!(nat, Nat::Symmetric | Nat::WithIpv6);
        let [hard, easy] = if is_hard(nats[0]) { [one, other] } else { [other, one] };
        assert!(why(hard, easy).contains("found by port guessing"), "{nats:?}");
        for (from, to) in [(one, other), (other, one)] {
            // A relay may drop a datagram on a busy machine, so both directions must be direct.
            from.wait_until_direct(to);
            to.wait_until_direct(from);
            let target = to.addresses.of(Family::V4);
            let pings = ping(&from.host, format!("-c 300 -i 0.005 -s 1200 {target}"));
            assert!(pings.is_complete(), "{nats:?}: {} of 300 answered", pings.received);
            let (client, server) = (&from.host, &to.host);
            let run =
                Iperf { client, server, address: target, seconds: 2, options: "" }.carry(BYTES);
            println!("{}: {:.2} Gbit/s", from.host.name(), run.gbps());
            from.wait_until_direct(to);
        }
        // Sockets of data, names and the peer, without the 256 of the probes.
        assert!(sockets(hard) < 20, "{nats:?}: {} sockets", sockets(hard));
    }
}

#[test]
fn a_lost_birthday_path_falls_back_to_the_relay_and_is_found_again() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [hard, easy] = pair(&tailnet, 0, [Nat::Symmetric, Nat::PortRestricted], "");
    let took = time_to_direct([&hard, &easy], deadline(LIMIT));
    assert!(took.is_some(), "{}", why(&hard, &easy));
    let pinging =
        Pinging::start(&hard.host, "on", &format!("{OFTEN} {}", easy.addresses.of(Family::V4)));
    pinging.wait_for_replies(100, PATIENCE);
    tailnet.clear_flows(&hard.host);
    eventually("the relay takes over", Duration::from_secs(12), || {
        matches!(hard.path_to(&easy), Path::Relay(_))
    });
    pinging.wait_for_replies(200, Duration::from_secs(12));
    assert!(sockets(&hard) < 20, "{} sockets", sockets(&hard));
    drop(pinging);
    let again = time_to_direct([&hard, &easy], deadline(Duration::from_secs(120)));
    println!("first after {took:?}, again after {again:?}");
    assert!(again.is_some(), "{}", why(&hard, &easy));
}

#[test]
fn birthday_probing_needs_the_consent_of_both_nodes() {
    let Some(tailnet) = Tailnet::start() else { return };
    let nats = [Nat::Symmetric, Nat::PortRestricted];
    let [hard, easy] = pair(&tailnet, 0, nats, "--guess-ports=false");
    let calls =
        [&hard, &easy].map(|member| Counter::start(&member.host, "calls", "output", PROBES));
    assert!(time_to_direct([&hard, &easy], Duration::from_secs(15)).is_none());
    for (member, calls) in [&hard, &easy].into_iter().zip(&calls) {
        assert!(calls.packets() < 50, "{}: {}", member.host.name(), calls.packets());
    }
    for member in [&hard, &easy] {
        let set = member.attempt("set tailnet0 --guess-ports");
        assert!(set.ok, "{set:?}");
    }
    let before = calls[1].packets();
    let watch = Stopwatch::start();
    let took = time_to_direct([&hard, &easy], deadline(Duration::from_secs(60)));
    assert!(took.is_some(), "{}", why(&hard, &easy));
    let called = calls[1].packets() - before;
    println!("{called} calls, met after {took:?}");
    assert!(called as f64 <= f64::from(PACE) * watch.elapsed().as_secs_f64().min(14.0));
}

/// One node's explanation of the path to the other, and both of their networks.
fn why(from: &Member, to: &Member) -> String {
    let why = from.attempt(&format!("why {}", to.addresses.of(Family::V4))).stdout;
    let [one, other] = [from, to].map(|member| member.attempt("netcheck").stdout);
    format!("{why}\n{one}\n{other}")
}
