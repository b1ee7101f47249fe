//! Monitoring and maintenance of a server: counters, health, logs, and a replaced certificate.

use std::collections::BTreeSet;

use netns::{
    Certificate, CoordinatorKind, Family, Member, MemberKind, Nat, Switch, Tailnet, Uplink,
    eventually, ping,
};

use super::{PATIENCE, is_online, join, start};

const METRICS: &str = "http://127.0.0.1:9587/metrics";

/// Requests a URL on the server's own host. Returns the status and the body.
fn request(tailnet: &Tailnet, words: &str) -> (String, String) {
    let host = &tailnet.coordinator.host;
    let query = host.attempt(format!("curl -sS -m 10 -w '\\n%{{http_code}}' {words}"));
    let (text, status) = query.stdout.rsplit_once('\n').unwrap_or_default();
    (status.to_owned(), text.to_owned())
}

/// A sample of the counters.
fn counted(tailnet: &Tailnet, name: &str) -> f64 {
    let (status, text) = request(tailnet, METRICS);
    assert_eq!(status, "200", "{text}");
    let line =
        text.lines().find_map(|line| line.strip_prefix("linerate_server_")?.strip_prefix(name));
    let value = line.and_then(|line| line.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {text}"))
}

#[test]
fn counters_of_a_network_are_served_at_their_own_address() {
    let Some(mut tailnet) = start() else { return };
    tailnet.coordinator.set("metrics_listen = [\"127.0.0.1:9587\"]");
    assert_eq!(counted(&tailnet, "nodes"), 0.0);
    let near = join(&tailnet, "near", MemberKind::Tailscaled, "");
    let [one, other] =
        [("one", MemberKind::Tailscaled), ("other", MemberKind::Linerate)].map(|(name, kind)| {
            let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
            Member::join(&tailnet, host, kind, "")
        });
    near.reaches(&one, Family::V4);
    one.reaches(&other, Family::V4);
    let before = ["relay_datagrams_total", "relay_bytes_total"].map(|name| counted(&tailnet, name));
    ping(&one.host, format!("-c 20 -i 0.05 -s 1000 {}", other.addresses.of(Family::V4)));
    let after = ["relay_datagrams_total", "relay_bytes_total"].map(|name| counted(&tailnet, name));
    assert!(after[0] >= before[0] + 30.0, "{before:?} {after:?}");
    assert!(after[1] >= before[1] + 30_000.0, "{before:?} {after:?}");
    for (name, least) in [
        ("nodes", 3.0),
        ("nodes_connected", 3.0),
        ("users", 1.0),
        ("map_streams", 3.0),
        ("relay_clients", 2.0),
        ("commands_total", 6.0),
        ("commit_seconds_count", 3.0),
        ("store_version", 3.0),
        ("stun_answers_total", 1.0),
    ] {
        assert!(counted(&tailnet, name) >= least, "{name}: {}", counted(&tailnet, name));
    }
    assert_eq!(counted(&tailnet, "nodes"), 3.0);

    let url = tailnet.coordinator.url();
    let trusting = "--cacert /run/rig/ca.pem";
    let wrong = format!("{trusting} -H 'Authorization: Bearer no' {url}/api/v1/node");
    assert_eq!(request(&tailnet, &wrong).0, "401");
    assert_eq!(counted(&tailnet, "logins_refused_total{at=\"api\"}"), 1.0);
    let stranger = Member::start(tailnet.host("stranger", Uplink::Switch), MemberKind::Tailscaled);
    assert!(!stranger.log_in(url, "hskey-auth-none", "").ok);
    assert!(counted(&tailnet, "logins_refused_total{at=\"machine\"}") >= 1.0);
    assert_eq!(request(&tailnet, &format!("{trusting} {url}/metrics")).0, "404", "not for clients");
    let health = request(&tailnet, "http://127.0.0.1:9587/health");
    assert_eq!(health, ("200".into(), "{\"status\":\"pass\"}".into()));
}

#[test]
fn health_reports_whether_the_store_is_writable() {
    let Some(mut tailnet) = start() else { return };
    let small = "/run/rig/small";
    let host = tailnet.coordinator.host.clone();
    host.run(format!("mkdir {small} && mount -t tmpfs -o size=2m tmpfs {small}"));
    tailnet
        .coordinator
        .replace("state_dir = \"/run/rig/coordinator\"", &format!("state_dir = \"{small}\""));
    let health = |tailnet: &Tailnet| {
        request(tailnet, &format!("--cacert /run/rig/ca.pem {}/health", tailnet.coordinator.url()))
    };
    assert_eq!(health(&tailnet).0, "200");
    tailnet.coordinator.command("users create before");
    host.attempt(format!("dd if=/dev/zero of={small}/full bs=4k"));
    eventually("a full disk is reported", PATIENCE, || health(&tailnet).0 == "503");
    assert!(health(&tailnet).1.contains("the store cannot be written to"));
    host.run(format!("rm {small}/full"));
    eventually("free space is reported", PATIENCE, || health(&tailnet).0 == "200");
    tailnet.coordinator.command("users create after");
    let users = tailnet.coordinator.command("users list");
    assert!(users.contains("before") && users.contains("after"), "{users}");
}

#[test]
fn logs_are_json_if_configured() {
    let Some(mut tailnet) = start() else { return };
    tailnet.coordinator.set("log_format = \"json\"\nlog_level = \"warn,server::serve=info\"");
    let text = tailnet.coordinator.log();
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let events: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let targets: BTreeSet<&str> =
        events.iter().filter_map(|event| event["target"].as_str()).collect();
    assert_eq!(targets, BTreeSet::from(["server::serve::start"]), "{text}");
    assert!(events.iter().any(|event| event["message"] == "serving https://10.1.0.1"), "{text}");
}

/// Connections of members, by their remote addresses.
fn connections(tailnet: &Tailnet) -> BTreeSet<String> {
    tailnet.coordinator.host.connected_to(443).into_iter().collect()
}

#[test]
fn a_certificate_is_replaced_and_no_connection_ends() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Tailscaled, "");
    let other = join(&tailnet, "other", MemberKind::Linerate, "");
    one.reaches(&other, Family::V4);
    let host = &tailnet.coordinator.host;
    let mut before = connections(&tailnet);
    eventually("its connections stay the same", PATIENCE, || {
        let last = std::mem::replace(&mut before, connections(&tailnet));
        std::thread::sleep(std::time::Duration::from_secs(1));
        last == before && before.len() >= 2
    });

    let trusts = |authority: &str| {
        let words = format!("--cacert {authority} {}/health", tailnet.coordinator.url());
        request(&tailnet, &words).0 == "200"
    };
    let new = Certificate::new(Switch::coordinator());
    let authority = host.write("new-ca.pem", &new.authority);
    assert!(!trusts(&authority) && trusts("/run/rig/ca.pem"));
    host.write("tls.pem", &new.chain);
    host.write_secret("tls.key", &new.key);
    eventually("the new certificate is in use", PATIENCE, || trusts(&authority));
    assert!(tailnet.coordinator.log().contains("the new certificate is in use"));

    // The key of another certificate.
    host.write_secret("tls.key", &Certificate::new(Switch::coordinator()).key);
    eventually("a bad pair is refused", PATIENCE, || {
        let log = tailnet.coordinator.log();
        log.contains("the new certificate is invalid, the old one stays in use")
    });
    assert!(trusts(&authority));
    host.write_secret("tls.key", &new.key);
    tailnet.coordinator.signal("HUP");
    assert!(trusts(&authority));
    let after = connections(&tailnet);
    assert!(before.is_subset(&after), "{before:?} {after:?}");
    assert!(is_online(&tailnet, "one") && is_online(&tailnet, "other"));
}

#[test]
fn a_signal_ends_the_confined_server_in_order() {
    let Some(mut tailnet) = start() else { return };
    assert_eq!(tailnet.coordinator.kind(), CoordinatorKind::Linerate);
    let host = tailnet.coordinator.host.clone();
    let pid = tailnet.coordinator.pid();
    let status = host.read(&format!("/proc/{pid}/status"));
    let is = |field: &str, value: &str| {
        status.lines().any(|line| line.split_whitespace().eq([field, value]))
    };
    assert!(is("Seccomp:", "2") && is("NoNewPrivs:", "1"), "{status}");
    tailnet.coordinator.command("users create last");
    tailnet.coordinator.signal("TERM");
    eventually("it ends", PATIENCE, || !host.listens(443));
    tailnet.coordinator.restart();
    assert!(tailnet.coordinator.command("users list").contains("last"));
}
