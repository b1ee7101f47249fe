//! `linerate doctor` on hosts with wrong settings.
//!
//! ```text
//!   left                     router                      right
//!   eth0 10.1.0.1 ---- r1 10.1.0.254  10.2.0.254 r2 ---- eth0 10.2.0.2
//! ```

use std::time::Duration;

use netns::{Family, Host, INTERFACE, Implementation, Introduction, Key, Pair, ShowOutput};
use serde_json::Value;

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// The exit status and the JSON of a doctor.
fn doctor(host: &Host, arguments: &str) -> (i32, Value) {
    let program = Implementation::Linerate.path();
    let (path, program) = ("PATH=/run/rig/bin:$PATH", program.display());
    let line = format!("{path} {program} doctor --json {arguments}; echo $? >&2");
    let outcome = host.attempt(line);
    let mut errors = outcome.stderr.lines().rev();
    let status = errors.next().and_then(|line| line.parse().ok()).expect("the shell printed it");
    let report = serde_json::from_str(&outcome.stdout);
    (status, report.unwrap_or_else(|error| panic!("{error}: {outcome:?}")))
}

/// The findings: check, subject, and the commands that would run.
fn findings(report: &Value) -> Vec<(String, String, Vec<String>)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let all = report["findings"].as_array().expect("a list").iter();
    let findings = all.filter(|finding| finding["weight"] != "note").map(|finding| {
        for key in ["what", "why", "cost"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
        let commands = finding["commands"].as_array().expect("a list").iter().map(text);
        (text(&finding["check"]), text(&finding["on"]), commands.collect())
    });
    findings.collect()
}

/// Everything that the doctor may change here, from `ethtool -k` and the kernel.
fn state(host: &Host) -> Vec<String> {
    let features = "rx-udp-gro-forwarding|rx-gro-list|generic-receive-offload";
    let mut lines = Vec::new();
    for device in ["r1", "r2"] {
        lines.push(host.run(format!("ethtool -k {device} | grep -E '{features}'")));
        lines.push(host.run(format!("cat /proc/sys/net/ipv4/conf/{device}/forwarding")));
    }
    lines
}

#[test]
fn a_router_with_wrong_settings_is_found_repaired_and_restored() {
    let (_left, router, _right) = Pair::routed_hosts();
    router.run("ethtool -K r1 gro on && ethtool -K r2 gro off");
    router.run("ethtool -K r1 rx-gro-list on");
    router.run("echo 0 >/proc/sys/net/ipv4/conf/r2/forwarding");
    router.run("ip route add default via 10.1.0.1");
    let before = state(&router);

    let (status, report) = doctor(&router, "");
    assert_eq!((status, &report["unknown"]), (1, &Value::Array(vec![])), "{report:#}");
    let found = findings(&report);
    for (check, on, commands) in [
        ("gro", "r2", vec!["ethtool -K r2 rx-gro on"]),
        ("forwarding", "r2", vec!["sysctl -w net.ipv4.conf.r2.forwarding=1"]),
        (
            "udp-forwarding",
            "r1",
            vec!["ethtool -K r1 rx-gro-list off", "ethtool -K r1 rx-udp-gro-forwarding on"],
        ),
        ("udp-forwarding", "r2", vec!["ethtool -K r2 rx-udp-gro-forwarding on"]),
    ] {
        let commands = commands.into_iter().map(str::to_owned).collect();
        let wanted = (check.to_owned(), on.to_owned(), commands);
        assert!(found.contains(&wanted), "{wanted:?} in {found:#?}");
    }
    assert!(!found.iter().any(|(check, on, _)| (check.as_str(), on.as_str()) == ("gro", "r1")));
    assert_eq!(state(&router), before, "a check changes nothing");

    let (status, report) = doctor(&router, "--apply");
    assert_eq!((status, findings(&report)), (0, vec![]), "{report:#}");
    assert!(report["applied"].as_array().is_some_and(|applied| applied.len() >= 5), "{report:#}");
    assert_ne!(state(&router), before);
    assert_eq!(doctor(&router, "").0, 0);
    let file = "/run/linerate/doctor";
    assert_eq!(router.run(format!("stat -c %a {file}")).trim(), "600");

    let (status, report) = doctor(&router, "--undo");
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(state(&router), before);
    assert!(!router.has(file));
    assert_eq!(findings(&doctor(&router, "").1), found);
}

#[test]
fn too_large_an_mtu_and_a_silent_peer_are_found() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    left.host.run("ethtool -K eth0 gro on");
    let (status, report) = doctor(&left.host, INTERFACE);
    assert_eq!(status, 0, "{report:#}");

    left.host.run("ip link set eth0 mtu 1400");
    let stranger = Key::generate().public;
    left.host.run(format!(
        "wg set {INTERFACE} peer {stranger} endpoint 10.1.0.99:1 persistent-keepalive 1"
    ));
    netns::eventually("a handshake is sent to the stranger", PATIENCE, || {
        left.status().peer(&stranger).sent > 0
    });
    let (status, report) = doctor(&left.host, INTERFACE);
    let found = findings(&report);
    assert_eq!(status, 1);
    let checks: Vec<&str> = found.iter().map(|(check, ..)| check.as_str()).collect();
    assert_eq!(checks, ["silent-peer", "mtu"], "{found:#?}");
    assert_eq!(found[1].2, ["ip link set wg0 mtu 1340"]);

    left.host.run(format!("wg set {INTERFACE} peer {stranger} remove"));
    assert_eq!(doctor(&left.host, "--apply").0, 0);
    let size = "ping -c 1 -W 2 -M do -s 1312 10.9.0.2";
    assert!(left.host.attempt(size).ok, "a packet of 1340 bytes arrives");
    left.host.run("ip link set wg0 mtu 1330");
    let (status, report) = doctor(&left.host, "--undo");
    assert_eq!(
        (status, &report["undone"][0]["outcome"]),
        (0, &Value::from("changed")),
        "{report:#}"
    );
    assert!(left.host.run("ip link show wg0").contains("mtu 1330"), "the MTU stays as it was set");
}

#[test]
fn a_missing_interface_is_an_error() {
    let host = Host::new("alone");
    let program = Implementation::Linerate.path();
    let outcome = host.attempt(format!("{} doctor wg7; echo $?", program.display()));
    assert_eq!(outcome.stdout, "2\n", "{outcome:?}");
}

/// The client's networks contain the endpoint of its peer, in two halves.
#[test]
fn a_tunnel_routed_into_itself_is_reported_and_its_mtu_is_unchanged() {
    let (left, _router, right) = Pair::routed_hosts();
    left.run("ethtool -K eth0 gro on");
    let (own, other) = (Key::generate(), Key::generate());
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n[Peer]\nPublicKey = {}\n\
         Endpoint = 10.2.0.2:51820\nAllowedIPs = 0.0.0.0/1, 128.0.0.0/1\n",
        own.private, other.public
    );
    drop(right);
    let file = left.write_secret(&format!("{INTERFACE}.conf"), &text);
    left.run("chmod 700 /run/rig");
    let outcome = netns::linerate(&left, &format!("up {file}"));
    assert!(outcome.ok, "{outcome:?}");
    let before = left.run(format!("ip link show {INTERFACE}"));
    left.attempt("ping -c 1 -W 1 10.9.0.2");

    let (status, report) = doctor(&left, &format!("{INTERFACE} --apply"));
    let checks: Vec<_> = findings(&report).into_iter().map(|(check, ..)| check).collect();
    assert_eq!((status, checks), (1, vec!["circle".to_owned()]), "{report:#}");
    assert_eq!(left.run(format!("ip link show {INTERFACE}")), before);

    let relay = Key::generate().public;
    left.run(format!("wg set {INTERFACE} peer {relay} allowed-ips 10.2.0.2/32"));
    let (_, report) = doctor(&left, INTERFACE);
    let checks: Vec<_> = findings(&report).into_iter().map(|(check, ..)| check).collect();
    assert_eq!(checks, ["silent-peer"], "the peer is reached by another one: {report:#}");
    left.run(format!("wg set {INTERFACE} peer {relay} remove"));

    left.run("ip route add 10.2.0.2 via 10.1.0.254");
    let (_, report) = doctor(&left, INTERFACE);
    let all = report["findings"].as_array().expect("a list").iter();
    let circle: Vec<_> = all.filter(|finding| finding["check"] == "circle").collect();
    assert_eq!(circle.len(), 1, "the returned route is a note: {report:#}");
    assert_eq!(circle[0]["weight"], "note");
}

/// The right link has a smaller MTU, and its router sends no errors.
#[test]
fn a_path_with_a_smaller_mtu_behind_the_first_hop_is_reported() {
    let (pair, router) = Pair::routed();
    router.run("ip link set r2 mtu 1300");
    router.run(
        "nft 'add table inet silent; \
         add chain inet silent out { type filter hook output priority 0; }; \
         add rule inet silent out icmp type destination-unreachable drop'",
    );
    pair.introduce(Introduction { outer: Some(Family::V4), ..Introduction::default() });
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let found = || {
        let found = ShowOutput::of(&left.host, INTERFACE).path_mtus;
        found.get(&right.key.public).copied().filter(|mtu| *mtu <= 1240)
    };
    netns::eventually("the narrow path is found", PATIENCE, || {
        let ping = format!("ping -c 1 -W 0.2 -s 1000 {}", right.inner.of(Family::V4));
        left.host.attempt(ping);
        found().is_some()
    });
    let (status, report) = doctor(&left.host, INTERFACE);
    let all = report["findings"].as_array().expect("a list");
    let mtu: Vec<_> = all.iter().filter(|finding| finding["check"] == "mtu").collect();
    assert_eq!((status, mtu.len()), (1, 1), "{report:#}");
    let what = mtu[0]["what"].as_str().expect("a text");
    // The search may have continued since then.
    let bytes = what.split_once("only ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(bytes.is_some_and(|bytes: u32| (1000..=1240).contains(&bytes)), "{what}");
    assert!(what.contains("bytes were found"), "{what}");
    assert!(!all.iter().any(|finding| finding["check"] == "mtu-unused"), "{report:#}");
}

/// Brings an exit node up on a host that did not forward before.
fn exit_node(host: &Host) {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\nAddress = 10.9.0.2/24, fd09::2/64\n\
         OfferRoutes = 0.0.0.0/0, ::/0\nMasquerade = true\nIpForward = true\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 10.9.0.1/32, fd09::1/128\n",
        Key::generate().private,
        Key::generate().public
    );
    let file = host.write(&format!("{INTERFACE}.conf"), &text);
    host.run(format!("chmod 700 /run/rig; chmod 600 {file}"));
    let outcome = netns::linerate(host, &format!("up {file}"));
    assert!(outcome.ok, "{outcome:?}");
    host.run("ethtool -K eth0 gro on && ethtool -K eth0 rx-udp-gro-forwarding on");
}

#[test]
fn an_exit_node_that_stopped_forwarding_is_found() {
    let (_left, _router, right) = Pair::routed_hosts();
    exit_node(&right);
    let (status, report) = doctor(&right, INTERFACE);
    assert_eq!((status, &report["unknown"]), (0, &Value::Array(vec![])), "{report:#}");

    right.run("sysctl -q -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    right.run(
        "nft 'add table ip walled; \
         add chain ip walled wall { type filter hook forward priority 0; policy drop; }'",
    );
    let (status, report) = doctor(&right, INTERFACE);
    let offers = |report: &Value| {
        let found = findings(report).into_iter().filter(|(check, ..)| check == "offer");
        found.map(|(.., commands)| commands).collect::<Vec<_>>()
    };
    let switch = vec!["sysctl -w net.ipv4.ip_forward=1".to_owned()];
    assert_eq!((status, offers(&report)), (1, vec![switch, vec![]]), "{report:#}");
    let all = report["findings"].as_array().expect("a list").iter();
    let walls: Vec<_> = all.filter(|finding| finding["check"] == "forward-filter").collect();
    assert_eq!(walls.len(), 1, "{report:#}");
    assert!(walls[0]["what"].as_str().is_some_and(|what| what.contains("ip walled wall")));

    let (status, report) = doctor(&right, &format!("{INTERFACE} --apply"));
    assert_eq!((status, offers(&report)), (1, vec![vec![]]), "IPv6 remains: {report:#}");
}

/// Findings about undone changes of `up`: the sentence, and the commands that would run.
fn undone(report: &Value) -> Vec<(String, Value)> {
    let all = report["findings"].as_array().expect("a list").iter();
    let undone = all.filter(|finding| finding["check"] == "undone");
    let what = |finding: &Value| finding["what"].as_str().expect("a text").to_owned();
    undone.map(|finding| (what(finding), finding["commands"].clone())).collect()
}

#[test]
fn a_flushed_ruleset_and_a_reverted_setting_are_found() {
    let (_left, _router, right) = Pair::routed_hosts();
    right.run("sysctl -q -w net.ipv6.conf.eth0.accept_ra=1");
    exit_node(&right);
    assert_eq!(undone(&doctor(&right, INTERFACE).1), []);

    right.run(format!("nft flush chain inet linerate-{INTERFACE} nat"));
    let (status, report) = doctor(&right, INTERFACE);
    assert_eq!((status, undone(&report).len()), (1, 1), "a chain is empty: {report:#}");
    right.run("nft flush ruleset; sysctl -q -w net.ipv6.conf.eth0.accept_ra=0");
    let (status, report) = doctor(&right, INTERFACE);
    let found = undone(&report);
    assert_eq!((status, found.len()), (1, 2), "{report:#}");
    assert!(found[0].0.contains(&format!("inet linerate-{INTERFACE}")), "{found:?}");
    assert!(found[1].0.contains("eth0/accept_ra is 0"), "{found:?}");
    assert_eq!(found[1].1, serde_json::json!([]), "networkd would set it back");
}

#[test]
fn deleted_rules_and_name_servers_are_restored_and_reported_while_missing() {
    let (left, _router, _right) = Pair::routed_hosts();
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\nDNS = 10.9.0.2\n\
         RulePriority = 100\n[Peer]\n\
         PublicKey = {}\nEndpoint = 10.2.0.2:51820\nAllowedIPs = 0.0.0.0/0\n",
        Key::generate().private,
        Key::generate().public
    );
    let file = left.write_secret(&format!("{INTERFACE}.conf"), &text);
    left.run("chmod 700 /run/rig");
    let outcome = netns::linerate(&left, &format!("up {file}"));
    assert!(outcome.ok, "{outcome:?}");
    let rules = || left.run("ip -4 rule show");
    let before = rules();
    assert!(before.contains("100:") && before.contains("101:"), "{before}");

    left.run("ip rule del priority 100; ip rule del priority 101");
    netns::eventually("the rules are put back", PATIENCE, || rules() == before);
    // If a rule is deleted again and again, it stays deleted for a while. A check that fails does
    // not suppress other findings.
    let nft = left.write_program("nft", "#!/bin/sh\nexit 1\n");
    let (mut found, mut report) = (Vec::new(), Value::Null);
    netns::eventually("it is found that a rule is missing", PATIENCE, || {
        left.attempt("for i in 1 2 3 4 5 6 7 8; do ip rule del priority 101; sleep 0.05; done");
        report = doctor(&left, INTERFACE).1;
        found = undone(&report);
        !found.is_empty()
    });
    assert!(found[0].0.ends_with(": 101 of IPv4"), "{found:?}");
    let unknown = report["unknown"].to_string();
    assert!(unknown.contains(&format!("the changes by `up` for {INTERFACE}: nft: ")), "{unknown}");
    left.run(format!("rm {nft}"));
    netns::eventually("the rule is put back again", PATIENCE, || rules() == before);
    assert_eq!(undone(&doctor(&left, INTERFACE).1), []);

    left.write("resolv.conf", "nameserver 192.0.2.54\n");
    let found = undone(&doctor(&left, INTERFACE).1);
    assert!(found.len() == 1 && found[0].0.contains("/etc/resolv.conf"), "{found:?}");
}
