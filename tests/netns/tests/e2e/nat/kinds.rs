//! A node's description of its NAT box, and of why a path is not direct.

use std::time::Duration;

use netns::{Family, Member, MemberKind, Nat, Path, Tailnet, Uplink, eventually, ping};

/// Time in which a node detects it.
const PATIENCE: Duration = Duration::from_secs(30);

fn behind(tailnet: &Tailnet, nat: Nat) -> Member {
    let host = tailnet.host(&format!("{nat:?}").to_lowercase(), Uplink::Behind(nat));
    Member::join(tailnet, host, MemberKind::Linerate, "--guess-ports=false")
}

fn wait_for_line(member: &Member, line: &str) {
    eventually(&format!("{}: {line}", member.host.name()), PATIENCE, || {
        let report = member.attempt("netcheck").stdout;
        report.lines().any(|one| one.starts_with("NAT ") && one.ends_with(line))
    });
}

#[test]
fn nodes_with_both_families_prefer_ipv6() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [one, other] = [0, 1].map(|_| behind(&tailnet, Nat::ConeWithIpv6));
    for (from, to) in [(&one, &other), (&other, &one)] {
        eventually("they use IPv6", PATIENCE, || {
            ping(&from.host, format!("-c 1 -W 1 {}", to.addresses.of(Family::V4)));
            matches!(from.path_to(to), Path::Direct(at) if at.starts_with('['))
        });
    }
    ping(&one.host, format!("-c 100 -i 0.05 {}", other.addresses.of(Family::V4)));
    let at = one.wait_until_direct(&other);
    assert!(at.starts_with('['), "IPv6 remains: {at}");
}

#[test]
fn a_node_detects_the_kind_of_its_nat() {
    let Some(tailnet) = Tailnet::start() else { return };
    let kinds = [Nat::Hairpin, Nat::FullCone, Nat::Symmetric, Nat::PortRestricted];
    let [hairpin, cone, symmetric, restricted] = kinds.map(|nat| behind(&tailnet, nat));
    // There is one STUN server, so a peer provides the second observation.
    for member in [&cone, &symmetric, &restricted] {
        member.wait_until_direct(&hairpin);
    }
    let same = "the same port for all destinations, equal to the local port";
    wait_for_line(&hairpin, &format!("{same}, hairpin"));
    wait_for_line(&cone, &format!("{same}, no hairpin"));
    wait_for_line(&restricted, &format!("{same}, no hairpin"));
    wait_for_line(&symmetric, "a different port for each destination (symmetric), no hairpin");

    symmetric.reaches(&restricted, Family::V4);
    eventually("it explains why it is relayed", PATIENCE, || {
        symmetric.reaches(&restricted, Family::V4);
        let why = symmetric.attempt(&format!("why {}", restricted.addresses.of(Family::V4))).stdout;
        why.contains("not direct: none of its endpoints answers; the NAT here is symmetric")
    });
}
