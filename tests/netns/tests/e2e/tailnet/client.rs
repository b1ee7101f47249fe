//! The unmodified tailscale(1) with a linerate node, compared with tailscaled.

use std::collections::BTreeSet;

use netns::{Member, MemberKind, Tailnet, Uplink, eventually};
use serde_json::Value;

use crate::tailnet::PATIENCE;

/// Fields that two nodes report equally about a third one.
const ALIKE: [&str; 15] = [
    "ID",
    "NodeID",
    "PublicKey",
    "HostName",
    "DNSName",
    "OS",
    "UserID",
    "TailscaleIPs",
    "AllowedIPs",
    "Relay",
    "Created",
    "Online",
    "ExitNode",
    "ExitNodeOption",
    "InNetworkMap",
];

/// linerate, tailscaled, and a third one.
fn three() -> Option<(Tailnet, [Member; 3])> {
    let tailnet = Tailnet::start()?;
    let kinds = [MemberKind::Linerate, MemberKind::Tailscaled, MemberKind::Tailscaled];
    let names = ["linerate", "tailscaled", "third"];
    let members = [0, 1, 2].map(|at| {
        let host = tailnet.host(names[at], Uplink::Switch);
        Member::join(&tailnet, host, kinds[at], "")
    });
    for one in &members[..2] {
        // A coordinator may announce that a node is online some seconds after the node connected.
        let is_online = || peer(&one.status(), "third")["Online"] == true;
        eventually("all have the third as an online peer", PATIENCE, is_online);
    }
    Some((tailnet, members))
}

fn has_peer(member: &Member, name: &str) -> bool {
    !peer(&member.status(), name).is_null()
}

fn peer(status: &Value, name: &str) -> Value {
    let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
    let mut found = peers.filter(|peer| peer["HostName"] == name);
    found.next().cloned().unwrap_or_default()
}

fn status(member: &Member) -> Value {
    let request = member.tailscale("status --json");
    serde_json::from_str(&request.stdout).unwrap_or_else(|error| panic!("{error}: {request:?}"))
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

#[test]
fn the_status_of_linerate_has_tailscaleds_fields_with_their_meaning() {
    let Some((_tailnet, members)) = three() else { return };
    let [ours, theirs] = [&members[0], &members[1]].map(status);
    assert_eq!(keys(&ours), keys(&theirs), "of the whole");
    assert_eq!(keys(&ours["Self"]), keys(&theirs["Self"]), "of oneself");
    let [seen, expected] = [&ours, &theirs].map(|status| peer(status, "third"));
    assert_eq!(keys(&seen), keys(&expected), "of a peer");
    for key in ALIKE {
        assert_eq!(seen[key], expected[key], "of a peer: {key}");
    }
    for key in ["BackendState", "TUN", "MagicDNSSuffix", "CurrentTailnet", "User", "CertDomains"] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
}

#[test]
fn tailscale_queries_a_linerate_node_as_tailscaled() {
    let Some((_tailnet, members)) = three() else { return };
    let [ours, theirs, third] = &members;
    let address = third.addresses.of(netns::Family::V4);
    for question in [format!("whois {address}"), "ip third".to_owned(), "ip -6 third".to_owned()] {
        let [seen, expected] = [ours, theirs].map(|member| member.tailscale(&question));
        assert!(seen.ok, "{question}: {seen:?}");
        assert_eq!(seen.stdout, expected.stdout, "{question}");
    }
    let own = ours.tailscale("ip -4").stdout;
    assert_eq!(own.trim(), ours.addresses.of(netns::Family::V4));
    let pong = ours.tailscale("ping --c 10 --timeout 2s --until-direct third");
    assert!(pong.ok && pong.stdout.contains(":51820 in "), "{pong:?}");
    let checked = ours.tailscale("netcheck");
    let report = checked.stdout.clone() + &checked.stderr;
    assert!(checked.ok && report.contains("Nearest DERP: Rig"), "{checked:?}");
}

#[test]
fn tailscale_sets_stops_starts_and_logs_out_a_linerate_node() {
    let Some((_tailnet, members)) = three() else { return };
    let [ours, _, third] = &members;
    let works = |line: &str| {
        let ended = ours.tailscale(line);
        assert!(ended.ok, "{line}: {ended:?}");
    };
    works("set --hostname=renamed --shields-up");
    eventually("the third has the new name", PATIENCE, || has_peer(third, "renamed"));
    works("set --shields-up=false");
    works("down");
    assert_eq!(status(ours)["BackendState"], "Stopped");
    works("up --hostname=renamed --login-server=https://10.1.0.1 --timeout=20s");
    assert_eq!(status(ours)["BackendState"], "Running");
    ours.reaches(third, netns::Family::V4);
    works("logout");
    assert_eq!(status(ours)["BackendState"], "NeedsLogin");
    let refused = ours.tailscale("status");
    assert!(!refused.ok && refused.stdout.contains("Logged out"), "{refused:?}");
}
