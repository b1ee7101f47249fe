//! linerate's own commands for a node.

use netns::{Family, Host, Member, MemberKind, Tailnet, Uplink, eventually, linerate};

use crate::tailnet::PATIENCE;

/// What a command prints.
fn says(host: &Host, command: &str) -> String {
    let ended = linerate(host, command);
    assert!(ended.ok, "{command}: {ended:?}");
    ended.stderr
}

/// What `linerate doctor` finds by a check.
pub fn doctor(member: &Member, check: &str) -> Vec<String> {
    let report = linerate(&member.host, &format!("doctor --json {}", Member::INTERFACE));
    let report: serde_json::Value = serde_json::from_str(&report.stderr).expect("a report");
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().filter(|finding| finding["check"] == check);
    found.map(|finding| finding["what"].as_str().expect("words").to_owned()).collect()
}

#[test]
fn a_node_shows_pings_explains_and_leaves() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = [("node", MemberKind::Linerate), ("other", MemberKind::Tailscaled)]
        .map(|(name, kind)| Member::join(&tailnet, tailnet.host(name, Uplink::Switch), kind, ""));
    let address = other.addresses.of(Family::V4);
    node.becomes_direct(&other);

    let status = says(&node.host, "status");
    let line = status.lines().find(|line| line.contains(address)).unwrap_or_default();
    assert!(line.contains("other") && line.contains("direct "), "{status}");
    let pong = says(&node.host, "ping other");
    assert!(pong.contains("answer from other") && pong.contains(address), "{pong}");
    let whois = says(&node.host, &format!("whois {address}"));
    assert!(whois.contains("other.rig.test") && whois.contains("rig"), "{whois}");
    let netcheck = says(&node.host, "netcheck");
    assert!(netcheck.contains("home relay") && netcheck.contains("rig"), "{netcheck}");
    let why = says(&node.host, "why other:22");
    assert!(!why.contains("FAIL"), "{why}");

    assert_eq!(doctor(&node, "tailnet"), [] as [String; 0]);
    says(&node.host, &format!("leave {}", Member::INTERFACE));
    assert!(!node.host.has_device(Member::INTERFACE));
    // headscale takes a node for online for some seconds more.
    eventually("the node is offline for its coordinator", PATIENCE, || {
        let nodes = tailnet.coordinator.command("nodes list --output json");
        let nodes: serde_json::Value = serde_json::from_str(&nodes).expect("a list of nodes");
        let mut nodes = nodes.as_array().expect("a list").iter();
        nodes.all(|one| one["given_name"] != "node" || one["online"] != true)
    });
}

#[test]
fn a_node_that_starts_again_is_the_same_node() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = ["node", "other"].map(|name| {
        Member::join(&tailnet, tailnet.host(name, Uplink::Switch), MemberKind::Linerate, "")
    });
    let own = |member: &Member| member.status()["Self"]["PublicKey"].clone();
    let port = || node.host.run(format!("wg show {} listen-port", Member::INTERFACE));
    let before = (own(&node), node.addresses.of(Family::V6).to_owned(), port());
    says(&node.host, &format!("down {}", Member::INTERFACE));
    let ended = node.start_again("");
    assert!(ended.ok, "{ended:?}");
    assert_eq!((own(&node), port()), (before.0, before.2));
    assert!(node.status()["TailscaleIPs"].to_string().contains(&before.1));
    other.reaches(&node, Family::V6);
}

#[test]
fn names_of_nodes_are_resolved_by_either() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = [("node", MemberKind::Linerate), ("other", MemberKind::Tailscaled)]
        .map(|(name, kind)| Member::join(&tailnet, tailnet.host(name, Uplink::Switch), kind, ""));
    for (from, to) in [(&node, &other), (&other, &node)] {
        let asked = format!("getent ahostsv4 {}", to.host.name());
        eventually("a name is resolved", PATIENCE, || {
            from.host.attempt(&asked).stdout.contains(to.addresses.of(Family::V4))
        });
    }
}

#[test]
fn names_are_resolved_still_where_another_program_wrote_over_the_servers() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = ["node", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    let asked = format!("getent ahostsv4 {}", other.host.name());
    let is_resolved = || node.host.attempt(&asked).stdout.contains(other.addresses.of(Family::V4));
    eventually("a name is resolved", PATIENCE, is_resolved);
    // As a DHCP client does in another network.
    node.host.run("echo nameserver 192.0.2.54 >/etc/resolv.conf");
    eventually("it is resolved again", PATIENCE, || {
        let written = node.host.run("cat /etc/resolv.conf");
        written.contains("| nameserver 192.0.2.54") && is_resolved()
    });
    says(&node.host, &format!("down {}", Member::INTERFACE));
    assert_eq!(node.host.run("cat /etc/resolv.conf"), "nameserver 192.0.2.54\n");
}
