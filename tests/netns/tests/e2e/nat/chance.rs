//! Two that meet by chance: one behind a box that gives each destination another port, the other behind
//! one that lets in only ports that it called.

use std::thread;
use std::time::Duration;

use netns::{
    Counter, Family, Iperf, Member, MemberKind, Nat, Path, Pinging, Stopwatch, Tailnet, Uplink,
    deadline, eventually, ping,
};

use crate::nat::changes::{OFTEN, PATIENCE};

/// Within this nearly all meet: some seconds of other tries, and 12 s of calls at most.
const MEETS: Duration = Duration::from_secs(30);

/// What a second of calls may be, with some that a busy machine makes up for.
const PACE: u32 = 220;

/// What is carried over each path that was found.
const BYTES: u64 = 16 << 20;

/// The calls of a host.
const CALLS: &str = "oifname eth0 udp dport 1024-65535 ct state new";

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

/// How long until both go directly, while the first pings the other.
fn time_to_meet(ends: [&Member; 2], within: Duration) -> Option<Duration> {
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
fn one_whose_port_varies_and_one_that_lets_in_what_it_called_meet_by_chance() {
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
        let took = time_to_meet([one, other], deadline(MEETS));
        println!("{nats:?} after {took:?}");
        took.is_some()
    };
    let have_met: Vec<bool> = thread::scope(|scope| {
        let threads: Vec<_> = pairs.iter().map(|one| scope.spawn(|| meets(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("both are asked")).collect()
    });
    // A busy machine may make too few calls in time. Those that did not meet try again minutes later.
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
            // A relay may drop a datagram on a busy machine, so both directions have to be direct.
            from.becomes_direct(to);
            to.becomes_direct(from);
            let target = to.addresses.of(Family::V4);
            let pings = ping(&from.host, format!("-c 300 -i 0.005 -s 1200 {target}"));
            assert!(pings.is_complete(), "{nats:?}: {} of 300 answered", pings.received);
            let (client, server) = (&from.host, &to.host);
            let run =
                Iperf { client, server, address: target, seconds: 2, options: "" }.carry(BYTES);
            println!("{}: {:.2} Gbit/s", from.host.name(), run.gbps());
            from.becomes_direct(to);
        }
        // The data's, the names', the peer's: not those 256.
        assert!(sockets(hard) < 20, "{nats:?}: {} sockets", sockets(hard));
    }
}

#[test]
fn a_way_by_chance_that_ends_is_left_for_the_relay_and_found_anew() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [hard, easy] = pair(&tailnet, 0, [Nat::Symmetric, Nat::PortRestricted], "");
    let took = time_to_meet([&hard, &easy], deadline(MEETS));
    assert!(took.is_some(), "{}", why(&hard, &easy));
    let pinging =
        Pinging::start(&hard.host, "on", &format!("{OFTEN} {}", easy.addresses.of(Family::V4)));
    pinging.goes_on(100, PATIENCE);
    tailnet.forget(&hard.host);
    eventually("the relay takes over", Duration::from_secs(12), || {
        matches!(hard.path_to(&easy), Path::Relay(_))
    });
    pinging.goes_on(200, Duration::from_secs(12));
    assert!(sockets(&hard) < 20, "{} sockets", sockets(&hard));
    drop(pinging);
    let again = time_to_meet([&hard, &easy], deadline(Duration::from_secs(120)));
    println!("first after {took:?}, again after {again:?}");
    assert!(again.is_some(), "{}", why(&hard, &easy));
}

#[test]
fn who_does_not_want_it_calls_nobody_and_is_asked_by_nobody() {
    let Some(tailnet) = Tailnet::start() else { return };
    let nats = [Nat::Symmetric, Nat::PortRestricted];
    let [hard, easy] = pair(&tailnet, 0, nats, "--guess-ports=false");
    let calls = [&hard, &easy].map(|member| Counter::start(&member.host, "calls", "output", CALLS));
    assert!(time_to_meet([&hard, &easy], Duration::from_secs(15)).is_none());
    for (member, calls) in [&hard, &easy].into_iter().zip(&calls) {
        assert!(calls.packets() < 50, "{}: {}", member.host.name(), calls.packets());
    }
    for member in [&hard, &easy] {
        let set = member.attempt("set tailnet0 --guess-ports");
        assert!(set.ok, "{set:?}");
    }
    let before = calls[1].packets();
    let watch = Stopwatch::start();
    let took = time_to_meet([&hard, &easy], deadline(Duration::from_secs(60)));
    assert!(took.is_some(), "{}", why(&hard, &easy));
    let called = calls[1].packets() - before;
    println!("{called} calls, met after {took:?}");
    assert!(called as f64 <= f64::from(PACE) * watch.elapsed().as_secs_f64().min(14.0));
}

/// What the one says of the way to the other, and both of their networks.
fn why(from: &Member, to: &Member) -> String {
    let why = from.attempt(&format!("why {}", to.addresses.of(Family::V4))).stdout;
    let [one, other] = [from, to].map(|member| member.attempt("netcheck").stdout);
    format!("{why}\n{one}\n{other}")
}
