//! Failures of the control plane, which lose no packet, and errors of users, which are explained.

use netns::{
    Certificate, Family, Member, MemberKind, MemberProgram, Outcome, Pinging, Switch, Tailnet,
    Uplink, eventually, linerate,
};

use super::commands::doctor;
use super::double::{Double, Stream};
use super::hostile::watched::Watched;
use crate::tailnet::PATIENCE;

/// A ping fifty times a second.
const OFTEN: &str = "-i 0.02";

/// Limit of the anonymous memory of all processes of a node, in bytes.
const MEMORY: u64 = 32 << 20;

/// Time in which an impossible join reports why.
const TIMEOUT: &str = "--timeout=10s";

fn members<const N: usize>(kinds: [MemberKind; N]) -> Option<(Tailnet, [Member; N])> {
    let tailnet = Tailnet::start()?;
    let mut number = 0;
    let members = kinds.map(|kind| {
        number += 1;
        Member::join(&tailnet, tailnet.host(&format!("node{number}"), Uplink::Switch), kind, "")
    });
    Some((tailnet, members))
}

/// The agent's pid inside its host.
fn agent(member: &Member) -> Option<u32> {
    process(member, "linerate-agent")
}

fn process(member: &Member, name: &str) -> Option<u32> {
    let found = member.host.attempt(format!("pgrep -f ^{name}"));
    found.stdout.split_whitespace().next()?.parse().ok()
}

#[test]
fn an_agent_that_is_killed_costs_no_packet() {
    let kinds = [MemberKind::Linerate, MemberKind::Tailscaled];
    let Some((_tailnet, [one, other])) = members(kinds) else { return };
    one.wait_until_direct(&other);
    // Packets from the relay pass the agent, so both directions must be direct.
    other.wait_until_direct(&one);
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "agent", &target);
    pinging.wait_for_replies(20, PATIENCE);
    let before = agent(&one).expect("a node has an agent");
    let limits = one.host.read(&format!("/proc/{before}/limits"));
    assert!(
        limits
            .lines()
            .any(|line| line.starts_with("Max data size") && line.contains(" 2147483648 ")),
        "{limits}"
    );
    one.host.run(format!("kill -KILL {before}"));
    eventually("there is a new agent", PATIENCE, || agent(&one).is_some_and(|now| now != before));
    pinging.wait_for_replies(100, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{}", pings.text);
    eventually("the new agent is connected", PATIENCE, || {
        one.attempt("status --json").stdout.contains("\"Running\"")
    });
    one.wait_until_direct(&other);
}

#[test]
fn an_agent_that_hangs_costs_no_packet() {
    let kinds = [MemberKind::Linerate, MemberKind::Linerate];
    let Some((_tailnet, [one, other])) = members(kinds) else { return };
    one.wait_until_direct(&other);
    // Packets from the relay pass the agent, so both directions must be direct.
    other.wait_until_direct(&one);
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "agent", &target);
    one.host.run(format!("kill -STOP {}", agent(&one).expect("a node has an agent")));
    pinging.wait_for_replies(500, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{}", pings.text);
}

#[test]
fn without_its_steward_a_node_continues_and_reports_it() {
    let kinds = [MemberKind::Linerate, MemberKind::Linerate];
    let Some((tailnet, [one, other])) = members(kinds) else { return };
    one.wait_until_direct(&other);
    let target = format!("{OFTEN} {}", other.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "steward", &target);
    let steward = process(&one, "linerate-steward").expect("a node has a steward");
    let before = agent(&one);
    one.host.run(format!("kill -KILL {steward}"));
    eventually("the status reports it", PATIENCE, || {
        let health = one.status()["Health"].to_string();
        health.contains("the process that configures routes and names was killed")
    });
    pinging.wait_for_replies(100, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{}", pings.text);
    assert_eq!(agent(&one), before);

    let host = tailnet.host("later", Uplink::Switch);
    let later = Member::join(&tailnet, host, MemberKind::Linerate, "");
    let address = later.addresses.of(Family::V4);
    eventually("the other is a peer", PATIENCE, || one.attempt("status").stdout.contains(address));

    let ended = linerate(&one.host, &format!("down {}", Member::INTERFACE));
    assert!(ended.ok, "{ended:?}");
    // No process waits for it any more.
    eventually("the agent ended, too", PATIENCE, || agent(&one).is_none());
}

#[test]
fn an_interface_has_its_routes_again_after_down_and_up() {
    let kinds = [MemberKind::Linerate, MemberKind::Linerate];
    let Some((_tailnet, [one, other])) = members(kinds) else { return };
    for family in [Family::V4, Family::V6] {
        one.reaches(&other, family);
    }
    let down = format!("ip link set {} down", Member::INTERFACE);
    one.host.run(down);
    assert!(!one.host.attempt(format!("ping -c 1 -W 1 {}", other.addresses.of(Family::V4))).ok);
    one.host.run(format!("ip link set {} up", Member::INTERFACE));
    for family in [Family::V4, Family::V6] {
        one.reaches(&other, family);
        other.reaches(&one, family);
    }
}

#[test]
fn without_a_coordinator_nodes_continue_restart_and_connect() {
    let kinds = [MemberKind::Linerate, MemberKind::Linerate, MemberKind::Tailscaled];
    let Some((tailnet, [one, other, third])) = members(kinds) else { return };
    one.wait_until_direct(&third);
    third.wait_until_direct(&one);
    for member in [&one, &other] {
        eventually("all are peers of each other", PATIENCE, || {
            let peers = member.status()["Peer"].as_object().map(|peers| peers.len());
            peers == Some(2)
        });
    }
    let target = format!("{OFTEN} {}", third.addresses.of(Family::V4));
    let pinging = Pinging::start(&one.host, "coordinator", &target);
    tailnet.coordinator.signal("KILL");
    pinging.wait_for_replies(200, PATIENCE);
    let pings = pinging.finish();
    assert!(pings.is_complete(), "{}", pings.text);
    let report = || doctor(&one, "tailnet").iter().any(|what| what.contains("coordinator"));
    eventually("the doctor reports it", PATIENCE, report);
    // They have never connected before.
    one.reaches(&other, Family::V4);
    let ended = linerate(&one.host, &format!("down {}", Member::INTERFACE));
    assert!(ended.ok, "{ended:?}");
    one.restart(TIMEOUT);
    for target in [&third, &other] {
        one.reaches(target, Family::V6);
    }
}

#[test]
fn an_impossible_join_reports_why_in_one_line_and_loses_nothing() {
    let Some(tailnet) = Tailnet::start() else { return };
    let node = Member::start(tailnet.host("node", Uplink::Switch), MemberKind::Linerate);
    let (url, key) = (tailnet.coordinator.url(), tailnet.coordinator.auth_key());
    let stranger = key.replace(|digit: char| digit.is_ascii_digit(), "x");
    let expired = tailnet.coordinator.new_auth_key("");
    // The tailnet's own key was the first.
    tailnet.coordinator.command("preauthkeys expire --id 2");
    for (url, key, named) in [
        ("https://10.1.0.99", key, "10.1.0.99"),
        (url, stranger.as_str(), "key"),
        (url, expired.as_str(), "expired"),
    ] {
        let joined = node.log_in(url, key, TIMEOUT);
        assert!(!joined.ok, "{joined:?}");
        let line = joined.stderr.trim().lines().last().unwrap_or_default();
        assert!(line.starts_with("linerate: ") && line.contains(named), "{joined:?}");
        linerate(&node.host, &format!("down {}", Member::INTERFACE));
    }
    node.host.run("mv /run/rig/ca.pem /run/rig/right.pem && : >/run/rig/ca.pem");
    let joined = node.log_in(url, key, TIMEOUT);
    assert!(!joined.ok && joined.stderr.contains("certificate"), "{joined:?}");
    linerate(&node.host, &format!("down {}", Member::INTERFACE));
    node.host.run("mv /run/rig/right.pem /run/rig/ca.pem");
    let joined = node.log_in(url, key, "");
    assert!(joined.ok, "{joined:?}");
    let again = node.start_as("other0", &format!("--timeout=5s {url}"));
    assert!(fails_with(&again, Member::STATE), "a second join into the same state: {again:?}");
    assert_eq!(node.status()["BackendState"], "Running");
}

/// Whether a command failed, and its last line contains this.
fn fails_with(outcome: &Outcome, what: &str) -> bool {
    let line = outcome.stderr.trim().lines().last().unwrap_or_default();
    !outcome.ok && line.starts_with("linerate: ") && line.contains(what)
}

#[test]
fn a_clock_that_is_off_by_a_day_is_reported_and_loses_no_packet() {
    let good = Certificate::new(Switch::coordinator());
    let wrong = [(good.of_days(-3..-1), "expired"), (good.of_days(1..3), "valid only in")];
    let double = Double::start(&wrong[0].0);
    let first = Member::start(double.new_host("one"), MemberKind::Linerate);
    for (certificate, report) in &wrong {
        double.certify(certificate);
        let joined = first.log_in(&double.url(), "key", "--timeout=3s");
        assert!(
            fails_with(&joined, report) && fails_with(&joined, "check the clock"),
            "{joined:?}"
        );
        linerate(&first.host, &format!("down {}", Member::INTERFACE));
    }
    double.certify(&good);
    let nodes = ["two", "three"].map(|name| double.join(name));
    let joined = first.log_in(&double.url(), "key", "");
    assert!(joined.ok, "{joined:?}");
    nodes[0].wait_until_direct(&nodes[1]);
    nodes[1].wait_until_direct(&nodes[0]);
    let watched = Watched::start(&nodes);
    for (certificate, report) in &wrong {
        double.certify(certificate);
        watched.wait_for_status(report);
    }
    double.certify(&good);
    watched.recovers();
    watched.finish(MEMORY);
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing() {
    let double = Double::start(&Certificate::new(Switch::coordinator()));
    let state = Member::STATE;
    let [fill, clear] = ["head -c 1M /dev/zero >", "rm "].map(|word| format!("{word}{state}/full"));
    let host = double.new_host("one");
    host.run(format!("mkdir {state} && mount -t tmpfs -o size=256k tmpfs {state}"));
    host.attempt(&fill);
    let node = Member::start(host, MemberKind::Linerate);
    let joined = node.log_in(&double.url(), "key", TIMEOUT);
    assert!(fails_with(&joined, "No space left") && fails_with(&joined, state), "{joined:?}");
    linerate(&node.host, &format!("down {}", Member::INTERFACE));
    node.host.run(&clear);
    let joined = node.log_in(&double.url(), "key", "");
    assert!(joined.ok, "{joined:?}");
    let key = node.status()["Self"]["PublicKey"].clone();
    node.host.attempt(&fill);
    double
        .set_stream(Stream::First(std::sync::Arc::new(|map| map["Domain"] = "other.test".into())));
    eventually("the status reports it", PATIENCE, || {
        node.attempt("status").stdout.lines().any(|line| line.contains("No space left"))
    });
    linerate(&node.host, &format!("down {}", Member::INTERFACE));
    node.host.run(&clear);
    double.set_behaviour(doubles::coordinator::Behaviour::NeverAnswers);
    node.restart(TIMEOUT);
    let status = node.status();
    assert_eq!((&status["Self"]["PublicKey"], &status["BackendState"]), (&key, &"Running".into()));
}

/// As by the OOM killer, or by systemd for a whole group.
#[test]
fn a_node_restarts_or_goes_down_after_all_its_processes_were_killed() {
    let Some(tailnet) = Tailnet::start() else { return };
    let node = Member::start(tailnet.host("node", Uplink::Switch), MemberKind::Linerate);
    let resolver = || node.host.read("/etc/resolv.conf");
    let before = resolver();
    let joined = node.log_in(tailnet.coordinator.url(), tailnet.coordinator.auth_key(), "");
    assert!(joined.ok, "{joined:?}");
    let kill = || {
        node.host.run("pkill -KILL -f '^([^ ]*/)?linerate'");
        eventually("all have ended", PATIENCE, || {
            !node.host.attempt("pgrep -f '^([^ ]*/)?linerate'").ok
        });
    };
    for _ in 0..2 {
        kill();
        let status = node.attempt("status");
        assert!(fails_with(&status, "no node"), "{status:?}");
        let again = node.restart("");
        assert!(again.ok, "{again:?}");
        assert_eq!(node.status()["BackendState"], "Running");
    }
    kill();
    let down = linerate(&node.host, &format!("down {}", Member::INTERFACE));
    assert!(down.ok, "{down:?}");
    assert_eq!(resolver(), before);
    assert!(node.restart("").ok);
    kill();
    let left = node.attempt(&format!("leave {}", Member::INTERFACE));
    assert!(left.ok, "{left:?}");
    assert_eq!(resolver(), before);
}

#[test]
fn a_key_is_used_after_the_coordinator_deleted_the_machine() {
    let Some(tailnet) = Tailnet::start() else { return };
    let host = tailnet.host("node", Uplink::Switch);
    let node = Member::join(&tailnet, host, MemberKind::Linerate, "");
    let (url, key) = (tailnet.coordinator.url(), tailnet.coordinator.auth_key());
    let numbers = || -> Vec<String> {
        tailnet.coordinator.nodes().iter().map(|node| node["id"].to_string()).collect()
    };
    for _ in 0..5 {
        let before = numbers();
        linerate(&node.host, &format!("down {}", Member::INTERFACE));
        for number in &before {
            let id = number.trim_matches('"');
            tailnet.coordinator.command(&format!("nodes delete --force -i {id}"));
        }
        let joined = node.log_in(url, key, "");
        assert!(joined.ok && joined.stderr.contains(": connected, "), "{joined:?}");
        let after = numbers();
        assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    }
}

#[test]
fn a_join_without_the_coordinator_uses_the_last_map() {
    let Some(mut tailnet) = Tailnet::start() else { return };
    let host = tailnet.host("node", Uplink::Switch);
    let node = Member::join(&tailnet, host, MemberKind::Linerate, "");
    linerate(&node.host, &format!("down {}", Member::INTERFACE));
    tailnet.coordinator.kill();
    let joined = node.restart("");
    assert!(joined.ok && joined.stderr.contains("connected by the last map, "), "{joined:?}");
    assert!(joined.stderr.contains("connection refused"), "{joined:?}");
    tailnet.coordinator.restart();
    eventually("the node is online", PATIENCE, || node.status()["Self"]["Online"] == true);
    let joined = node.restart("");
    assert!(joined.ok && joined.stderr.contains(": connected, "), "{joined:?}");
}

#[test]
fn a_certificate_file_of_root_is_used_and_an_unusable_one_is_reported() {
    let Some(tailnet) = Tailnet::start() else { return };
    let join = |name: &str, file: &str| {
        let host = tailnet.host(name, Uplink::Switch);
        host.run("install -d -m 700 /run/rig/private && mv /run/rig/ca.pem /run/rig/private/");
        let mut program = MemberProgram::from(MemberKind::Linerate);
        program.environment = vec![format!("SSL_CERT_FILE={file}")];
        let node = Member::start(host, program);
        let key = tailnet.coordinator.auth_key();
        (node.log_in(tailnet.coordinator.url(), key, "--timeout=10s"), node)
    };
    let (joined, _node) = join("node", "/run/rig/private/ca.pem");
    assert!(joined.ok, "{joined:?}");
    let (refused, _other) = join("other", "/run/rig/private/absent.pem");
    let reason = "SSL_CERT_FILE: /run/rig/private/absent.pem: No such file";
    assert!(!refused.ok && refused.stderr.contains(reason), "{refused:?}");
}

#[test]
fn a_key_is_read_from_the_file_of_a_variable_if_another_is_empty() {
    let Some(tailnet) = Tailnet::start() else { return };
    for variable in ["TS_AUTHKEY", "TS_AUTH_KEY"] {
        let host = tailnet.host(&variable.to_lowercase().replace('_', ""), Uplink::Switch);
        let file = host.write_secret("auth.key", tailnet.coordinator.auth_key());
        let mut program = MemberProgram::from(MemberKind::Linerate);
        let key = format!("{variable}=file:{file}");
        program.environment = vec!["LINERATE_AUTH_KEY=".to_owned(), key];
        let joined = Member::start(host, program).restart(tailnet.coordinator.url());
        assert!(joined.ok && joined.stderr.contains(": connected, "), "{joined:?}");
    }
}

#[test]
fn invalid_flags_start_nothing_and_a_missing_device_suggests_userspace() {
    let Some(tailnet) = Tailnet::start() else { return };
    let node = Member::start(tailnet.host("node", Uplink::Switch), MemberKind::Linerate);
    let url = tailnet.coordinator.url();
    for (flags, reason) in [
        ("--advertise-tags=server", "a tag must begin with `tag:`"),
        ("--advertise-routes=0.0.0.0/0", "0.0.0.0/0 without ::/0"),
        ("--hostname -x", "a name must not begin with a hyphen"),
    ] {
        let refused = node.restart(&format!("{url} {flags}"));
        assert!(!refused.ok && refused.stderr.contains(reason), "{flags}: {refused:?}");
        assert!(!node.host.has_device(Member::INTERFACE), "{flags}");
    }
    node.host.run("mount -t tmpfs none /dev/net");
    let refused = node.restart(url);
    let reason = "/dev/net/tun does not exist; `linerate join --userspace` works without it";
    assert!(!refused.ok && refused.stderr.contains(reason), "{refused:?}");
}
