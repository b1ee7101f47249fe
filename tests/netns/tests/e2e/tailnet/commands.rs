//! linerate's own commands for a node.

use netns::{
    Family, Host, Implementation, Member, MemberKind, Tailnet, Uplink, eventually, linerate,
};

use crate::tailnet::PATIENCE;

/// The output of a command.
fn output_of(host: &Host, command: &str) -> String {
    let ended = linerate(host, command);
    assert!(ended.ok, "{command}: {ended:?}");
    ended.stderr
}

/// The findings of a check of `linerate doctor`.
pub(super) fn doctor(member: &Member, check: &str) -> Vec<String> {
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
    node.wait_until_direct(&other);

    let status = output_of(&node.host, "status");
    let line = status.lines().find(|line| line.contains(address)).unwrap_or_default();
    assert!(line.contains("other") && line.contains("direct "), "{status}");
    let pong = output_of(&node.host, &format!("ping -i {} other", Member::INTERFACE));
    assert!(pong.contains("answer from other") && pong.contains(address), "{pong}");
    let whois = output_of(&node.host, &format!("whois {address}"));
    assert!(whois.contains("other.rig.test") && whois.contains("rig"), "{whois}");
    let netcheck = output_of(&node.host, "netcheck");
    assert!(netcheck.contains("home relay") && netcheck.contains("rig"), "{netcheck}");
    let why = output_of(&node.host, &format!("why other:22 -i {}", Member::INTERFACE));
    assert!(!why.contains("FAIL"), "{why}");

    assert_eq!(doctor(&node, "tailnet"), [] as [String; 0]);
    output_of(&node.host, &format!("leave {}", Member::INTERFACE));
    assert!(!node.host.has_device(Member::INTERFACE));
    // headscale considers a node online for some more seconds.
    eventually("the node is offline for its coordinator", PATIENCE, || {
        let nodes = tailnet.coordinator.command("nodes list --output json");
        let nodes: serde_json::Value = serde_json::from_str(&nodes).expect("a list of nodes");
        let mut nodes = nodes.as_array().expect("a list").iter();
        nodes.all(|one| one["given_name"] != "node" || one["online"] != true)
    });
}

#[test]
fn a_restarted_node_is_the_same_node() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = ["node", "other"].map(|name| {
        Member::join(&tailnet, tailnet.host(name, Uplink::Switch), MemberKind::Linerate, "")
    });
    let own = |member: &Member| member.status()["Self"]["PublicKey"].clone();
    let port = || node.host.run(format!("wg show {} listen-port", Member::INTERFACE));
    let before = (own(&node), node.addresses.of(Family::V6).to_owned(), port());
    output_of(&node.host, &format!("down {}", Member::INTERFACE));
    let ended = node.restart("");
    assert!(ended.ok, "{ended:?}");
    assert_eq!((own(&node), port()), (before.0, before.2));
    assert!(node.status()["TailscaleIPs"].to_string().contains(&before.1));
    other.reaches(&node, Family::V6);
}

#[test]
fn linerate_and_tailscaled_resolve_names_of_nodes() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = [("node", MemberKind::Linerate), ("other", MemberKind::Tailscaled)]
        .map(|(name, kind)| Member::join(&tailnet, tailnet.host(name, Uplink::Switch), kind, ""));
    for (from, to) in [(&node, &other), (&other, &node)] {
        let request = format!("getent ahostsv4 {}", to.host.name());
        eventually("a name is resolved", PATIENCE, || {
            from.host.attempt(&request).stdout.contains(to.addresses.of(Family::V4))
        });
    }
}

#[test]
fn names_are_resolved_after_another_program_replaced_the_servers() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [node, other] = ["node", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    let request = format!("getent ahostsv4 {}", other.host.name());
    let is_resolved =
        || node.host.attempt(&request).stdout.contains(other.addresses.of(Family::V4));
    eventually("a name is resolved", PATIENCE, is_resolved);
    // As a DHCP client does in another network.
    node.host.run("echo nameserver 192.0.2.54 >/etc/resolv.conf");
    eventually("it is resolved again", PATIENCE, || {
        let written = node.host.run("cat /etc/resolv.conf");
        written.contains("| nameserver 192.0.2.54") && is_resolved()
    });
    output_of(&node.host, &format!("down {}", Member::INTERFACE));
    assert_eq!(node.host.run("cat /etc/resolv.conf"), "nameserver 192.0.2.54\n");
}

/// Runs a command on a host as a user with this number.
fn as_user(host: &Host, user: u32, command: &str) -> netns::Outcome {
    host.attempt(format!("setpriv --reuid={user} --regid={user} --clear-groups {command}"))
}

#[test]
fn only_root_and_the_operator_may_change_settings() {
    if netns::lacks_users() {
        return;
    }
    let Some(tailnet) = Tailnet::start() else { return };
    let host = tailnet.host("node", Uplink::Switch);
    // As `linerate up` leaves the folder.
    host.run("install -d -m 700 /run/linerate");
    let flags = "--operator=nobody --relay-server-port=0";
    let node = Member::join(&tailnet, host, MemberKind::Linerate, flags);
    let number = |program: &str| -> u32 {
        let mut found = None;
        eventually(&format!("{program} runs as its own user"), PATIENCE, || {
            // /proc itself belongs to root, because these processes cannot be dumped.
            let request = format!("grep ^Uid: /proc/$(pgrep -f ^{program})/status | cut -f 2");
            found =
                node.host.attempt(&request).stdout.trim().parse().ok().filter(|user| *user != 0);
            found.is_some()
        });
        found.expect("it runs")
    };
    let [agent, relay] = ["linerate-agent", "linerate-relay"].map(number);
    assert_ne!(agent, relay);
    let folder = node.host.run(format!("stat -c %a,%u {}/agent", Member::STATE));
    assert_eq!(folder.trim(), format!("700,{agent}"));
    const NOBODY: u32 = 65_534;
    const DAEMON: u32 = 1;
    let program = Implementation::Linerate.path();
    let program = program.display();
    let set = |user, value: &str| {
        let command = format!("{program} set {} --hostname={value}", Member::INTERFACE);
        as_user(&node.host, user, &command)
    };
    let hostname = || {
        let prefs = node.tailscale("debug prefs").stdout;
        let prefs: serde_json::Value = serde_json::from_str(&prefs).expect("preferences");
        prefs["Hostname"].clone()
    };
    for user in [DAEMON, agent, relay] {
        let refused = set(user, "stolen");
        let output = refused.stdout.clone() + &refused.stderr;
        assert!(
            !refused.ok && output.contains("only root and the operator may"),
            "{user}: {refused:?}"
        );
        let shown = as_user(&node.host, user, &format!("{program} status"));
        assert!(shown.ok && shown.stdout.contains("this machine"), "{user}: {shown:?}");
    }
    assert_eq!(hostname(), "node");
    let done = set(NOBODY, "renamed");
    assert!(done.ok, "{done:?}");
    assert_eq!(hostname(), "renamed");
    // tailscale(1) by the operator.
    let socket = format!("/run/linerate/{}.tailscaled.sock", Member::INTERFACE);
    let tailscale = netns::peer("tailscale").expect("the tailnet started with it");
    let command = format!("{} --socket={socket} set --hostname=again", tailscale.display());
    let done = as_user(&node.host, NOBODY, &command);
    assert!(done.ok, "{done:?}");
    assert_eq!(hostname(), "again");
    let unknown = linerate(&node.host, "set --operator=nosuchuser");
    assert!(unknown.ok, "{unknown:?}");
    let status = output_of(&node.host, "status");
    assert!(
        status.contains("the operator \"nosuchuser\" is not a user of this machine"),
        "{status}"
    );
    assert!(!set(NOBODY, "stolen").ok);
}
