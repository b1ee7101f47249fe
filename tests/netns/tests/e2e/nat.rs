//! Nodes behind boxes of each kind, with routers in between as on the Internet: all pairs connect,
//! and directly exactly if theory allows it.

mod birthday;
mod changes;
mod flooded;
mod idle;
mod kinds;
mod mapped;
mod survives;

use std::thread;
use std::time::Duration;

use netns::{
    Family, Member, MemberKind, MemberProgram, Nat, Path, Stopwatch, Tailnet, Uplink, deadline,
    ping,
};

/// Time in which two linerates connect directly if possible. 3 s are promised once each knows the
/// other and is connected to its relay, and the last node is announced within 2 s. Most take a
/// tenth of a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same with a stock node: its first handshake is lost, and repeated after 5 s.
const STOCK_PATIENCE: Duration = Duration::from_secs(12);

/// Time in which a ping is answered.
const ANSWERED: Duration = Duration::from_secs(2);

/// Seconds of attempts by pairs that cannot connect directly.
const LATER: u32 = 10;

/// Boxes that are also tested with stock nodes. These do not prime, so two boxes without an input
/// drop do not connect.
const STOCK: [Nat; 11] = [
    Nat::FullCone,
    Nat::AddressRestricted,
    Nat::PortRestricted,
    Nat::Symmetric,
    Nat::WithIpv6,
    Nat::WithoutUdp,
    Nat::OnlyHttps,
    Nat::ConeWithIpv6,
    Nat::OnlyIpv6,
    Nat::Nat64,
    Nat::OnlyProxy,
];

/// Whether hosts behind these boxes can connect directly.
fn can_meet(one: Nat, other: Nat) -> bool {
    if one.has_ipv6() && other.has_ipv6() {
        return true;
    }
    let [one, other] = [one, other].map(in_ipv4);
    match (one, other) {
        (Nat::WithoutUdp, _) | (_, Nat::WithoutUdp) => false,
        // The port that the second box must accept is unknown.
        (Nat::Symmetric, Nat::Symmetric | Nat::PortRestricted) => false,
        (Nat::PortRestricted, Nat::Symmetric) => false,
        _ => true,
    }
}

/// The equivalent box for hosts with IPv4 alone.
fn in_ipv4(nat: Nat) -> Nat {
    match nat {
        Nat::WithIpv6 => Nat::Symmetric,
        Nat::Hairpin => Nat::FullCone,
        Nat::WithoutInputDrop | Nat::Double | Nat::Forgetful => Nat::PortRestricted,
        Nat::ConeWithIpv6 | Nat::Nat64 => Nat::PortRestricted,
        Nat::OnlyHttps | Nat::OnlyProxy | Nat::OnlyIpv6 => Nat::WithoutUdp,
        nat => nat,
    }
}

/// The same if the other is a stock node, which does not know its address behind a translator.
fn can_meet_stock(one: Nat, other: Nat) -> bool {
    can_meet(one, if other == Nat::Nat64 { Nat::OnlyIpv6 } else { other })
}

/// A node behind each box.
fn join(tailnet: &Tailnet, kind: MemberKind, nats: &[Nat]) -> Vec<(Nat, Member)> {
    let key = tailnet.coordinator.auth_key();
    let nats: Vec<_> = nats.iter().copied().filter(|nat| !nat.is_missing()).collect();
    let ready = nats.iter().enumerate().map(|(at, nat)| {
        let name = format!("{nat:?}-{kind:?}-{at}").to_lowercase();
        let mut program = MemberProgram::from(kind);
        // Whether pairs connect by birthday probing is random: `birthday` tests that.
        let flags = if kind == MemberKind::Linerate { "--guess-ports=false" } else { "" };
        program.environment.extend(nat.environment());
        (url(tailnet, kind, *nat), tailnet.host(&name, Uplink::Behind(*nat)), program, flags)
    });
    let ready: Vec<_> = ready.collect();
    thread::scope(|scope| {
        let joins = ready.into_iter().map(|(url, host, program, flags)| {
            thread::Builder::new()
                .spawn_scoped(scope, move || Member::join_at(&url, key, host, program, flags))
                .expect("there is room for a thread")
        });
        let joins: Vec<_> = joins.collect();
        let members = joins.into_iter().map(|join| join.join().expect("it joins"));
        nats.into_iter().zip(members).collect()
    })
}

/// The coordinator's URL from behind this box.
fn url(tailnet: &Tailnet, kind: MemberKind, nat: Nat) -> String {
    let coordinator = &tailnet.coordinator;
    let translates = nat == Nat::Nat64 && kind == MemberKind::Linerate;
    if nat.has_ipv4() || translates {
        coordinator.url().to_owned()
    } else {
        coordinator.url_of_ipv6()
    }
}

/// Pairs with a wrong path, a line each.
fn wrong(pairs: &[([&Member; 2], bool)]) -> Vec<String> {
    // All relayed pairs keep trying while the others are checked.
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        for (ends, _) in pairs.iter().filter(|(_, meet)| !meet) {
            let ([one, other], pings) = (*ends, format!("-c {LATER}"));
            scope.spawn(move || {
                ping(&one.host, format!("{pings} {}", other.addresses.of(Family::V4)))
            });
        }
        for (ends, _) in pairs.iter().filter(|(_, meet)| *meet) {
            let names = ends.map(|member| member.host.name());
            println!("{names:?} after {:?}", wait_until_direct(*ends));
        }
    });
    for (ends, meet) in pairs {
        for [from, to] in [*ends, [ends[1], ends[0]]] {
            let patience = deadline(ANSWERED).as_secs();
            let target = to.addresses.of(Family::V4);
            let pings = ping(&from.host, format!("-c 2 -i 0.2 -W {patience} {target}"));
            let mut path = from.path_to(to);
            if *meet && !matches!(path, Path::Direct(_)) {
                wait_until_direct([from, to]);
                path = from.path_to(to);
            }
            if !pings.is_complete() || matches!(path, Path::Direct(_)) != *meet {
                let why = from.attempt(&format!("why {}", to.addresses.of(Family::V4))).stdout;
                let [from, to] = [from, to].map(|member| member.host.name());
                let answered = format!("{} of 2 answered", pings.received);
                wrong.push(format!("{from} -> {to}: {path:?}, {answered}\n{why}"));
            }
        }
    }
    wrong
}

/// Lets two nodes ping each other until both send directly, within a short time. Returns the
/// duration.
fn wait_until_direct(ends: [&Member; 2]) -> Duration {
    let watch = Stopwatch::start();
    let is_stock = ends.iter().any(|member| member.kind() == MemberKind::Tailscaled);
    let patience = deadline(if is_stock { STOCK_PATIENCE } else { PATIENCE });
    for [from, to] in [ends, [ends[1], ends[0]]] {
        let target = to.addresses.of(Family::V4);
        while !matches!(from.path_to(to), Path::Direct(_)) && watch.elapsed() < patience {
            ping(&from.host, format!("-c 1 -W 1 {target}"));
        }
    }
    watch.elapsed()
}

/// Checks each pair of one node of `ones` and one of `others`.
fn matrix(
    ones: &[(Nat, Member)],
    others: &[(Nat, Member)],
    is_pair: fn(usize, usize) -> bool,
    can_meet: fn(Nat, Nat) -> bool,
) {
    let mut pairs = Vec::new();
    for (at, (nat, one)) in ones.iter().enumerate() {
        for (concurrent, (behind, other)) in others.iter().enumerate() {
            if is_pair(at, concurrent) {
                pairs.push(([one, other], can_meet(*nat, *behind)));
            }
        }
    }
    let wrong = wrong(&pairs);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn two_linerates_connect_directly_exactly_if_theory_allows() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [ones, others] = [0, 1].map(|_| join(&tailnet, MemberKind::Linerate, &Nat::ALL));
    matrix(&ones, &others, |at, concurrent| at <= concurrent, can_meet);
}

#[test]
fn linerate_and_tailscaled_connect_directly_exactly_if_theory_allows() {
    let Some(tailnet) = Tailnet::start() else { return };
    let ones = join(&tailnet, MemberKind::Linerate, &STOCK);
    let others = join(&tailnet, MemberKind::Tailscaled, &STOCK);
    matrix(&ones, &others, |_, _| true, can_meet_stock);
}
