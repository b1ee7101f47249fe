//! A policy in force: its effect on stock clients and linerate, and invalid policies, which change
//! nothing.

use std::net::TcpListener;

use netns::{Family, Host, Member, MemberKind, Outcome, Tailnet, Uplink, eventually};
use serde_json::{Value, json};

use super::{PATIENCE, join, start};

use MemberKind::{Linerate, Tailscaled};

/// Port of listeners.
const PORT: u16 = 7200;

fn try_set(tailnet: &Tailnet, policy: &Value, flags: &str) -> Outcome {
    let file = tailnet.coordinator.host.write("policy.json", &policy.to_string());
    tailnet.coordinator.attempt(&format!("policy set --file {file} {flags}"))
}

/// Sets a policy. Returns the server's description of the changes.
pub(super) fn set(tailnet: &Tailnet, policy: &Value) -> String {
    let set = try_set(tailnet, policy, "");
    assert!(set.ok, "{set:?}");
    set.stdout
}

/// Listens at a port of a member.
fn listen(member: &Member) -> TcpListener {
    member.host.inside(|| TcpListener::bind(("0.0.0.0", PORT)).expect("the port is free"))
}

fn connects(from: &Host, to: &Member) -> bool {
    let words = format!("exec 3<>/dev/tcp/{}/{PORT}", to.addresses.of(Family::V4));
    from.attempt(format!("timeout 0.5 bash -c '{words}'")).ok
}

fn allows(port: &str) -> Value {
    let dst = [format!("rig@:{port}")];
    json!({ "acls": [{ "action": "accept", "src": ["rig@"], "dst": dst }] })
}

#[test]
fn policy_changes_take_effect_at_once() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", Tailscaled, "");
    for (name, kind) in [("theirs", Tailscaled), ("ours", Linerate)] {
        let other = join(&tailnet, name, kind, "");
        let _listening = listen(&other);
        one.wait_until_direct(&other);
        for (port, is_allowed) in [("*", true), ("1-1000", false), ("7000-7200", true)] {
            let report = set(&tailnet, &allows(port));
            let what = format!("port {PORT} of {name} where {port} is allowed: {is_allowed}");
            eventually(&what, PATIENCE, || connects(&one.host, &other) == is_allowed);
            let sign = if is_allowed { '+' } else { '-' };
            let is_first = port == "*";
            assert!(is_first || report.contains(&format!("{sign} one -> {name}:")), "{report}");
        }
    }
    set(&tailnet, &json!({ "acls": [] }));
    let peers = || one.status()["Peer"].as_object().map_or(0, serde_json::Map::len);
    eventually("an isolated node sees no peers", PATIENCE, || peers() == 0);
    set(&tailnet, &allows("*"));
    eventually("they are shown again", PATIENCE, || peers() == 2);
}

#[test]
fn only_owners_of_a_tag_may_assign_it() {
    let Some(tailnet) = start() else { return };
    set(&tailnet, &json!({ "tagOwners": { "tag:web": ["rig@"], "tag:db": [] } }));
    for (name, kind) in [("theirs", Tailscaled), ("ours", Linerate)] {
        let refused = Member::start(tailnet.host(&format!("{name}-not"), Uplink::Switch), kind);
        let (url, key) = (tailnet.coordinator.url(), tailnet.coordinator.auth_key());
        let output = refused.log_in(url, key, "--advertise-tags=tag:web,tag:db");
        assert!(!output.ok && output.stderr.contains("requested tags [tag:db]"), "{output:?}");
        let tagged = join(&tailnet, name, kind, "--advertise-tags=tag:web");
        assert_eq!(tagged.status()["Self"]["Tags"], json!(["tag:web"]));
    }
}

#[test]
fn routes_and_exits_approved_by_a_policy_need_no_administrator() {
    let Some(tailnet) = start() else { return };
    let approvers = json!({ "routes": { "10.77.0.0/16": ["rig@"] }, "exitNode": ["rig@"] });
    set(&tailnet, &json!({ "autoApprovers": approvers }));
    let one = join(&tailnet, "one", Tailscaled, "");
    let offers = "--advertise-routes=10.77.1.0/24,10.78.0.0/24 --advertise-exit-node";
    let router = join(&tailnet, "router", Tailscaled, offers);
    let seen = || {
        let status = one.status();
        let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
        let found = peers.into_iter().find(|peer| peer["HostName"] == router.host.name());
        found.cloned().unwrap_or_default()
    };
    eventually("its network is known", PATIENCE, || {
        seen()["PrimaryRoutes"] == json!(["10.77.1.0/24"])
    });
    assert_eq!(seen()["ExitNodeOption"], true);
    // A later policy approves more, and revokes nothing.
    set(&tailnet, &json!({ "autoApprovers": { "routes": { "10.78.0.0/16": ["rig@"] } } }));
    eventually("both of its networks are known", PATIENCE, || {
        seen()["PrimaryRoutes"] == json!(["10.77.1.0/24", "10.78.0.0/24"])
    });
    let rule = json!({ "action": "accept", "src": ["rig@"], "dst": ["rig@:*", "10.78.0.0/24:80"] });
    set(&tailnet, &json!({ "acls": [rule] }));
    eventually("only reachable routes are announced", PATIENCE, || {
        seen()["PrimaryRoutes"] == json!(["10.78.0.0/24"]) && seen()["ExitNodeOption"] != true
    });
}

#[test]
fn clients_receive_the_ssh_policy() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", Tailscaled, "");
    let other = join(&tailnet, "other", Tailscaled, "");
    let login = json!({
        "action": "accept", "src": ["rig@"], "dst": ["autogroup:self"], "users": ["root"],
    });
    set(&tailnet, &json!({ "ssh": [login] }));
    eventually("the policy of SSH is there", PATIENCE, || {
        let map = other.tailscale("debug netmap").stdout;
        let map: Value = serde_json::from_str(&map).unwrap_or_default();
        let principals = map["SSHPolicy"]["rules"][0]["principals"].to_string();
        principals.contains(one.addresses.of(Family::V4))
    });
}

#[test]
fn a_policy_with_a_failing_test_is_refused_and_a_restart_preserves_the_policy() {
    let Some(mut tailnet) = start() else { return };
    let one = join(&tailnet, "one", Tailscaled, "");
    let other = join(&tailnet, "other", Tailscaled, "");
    let _listening = listen(&other);
    let first = allows("7000-7200");
    set(&tailnet, &first);
    eventually("it is allowed", PATIENCE, || connects(&one.host, &other));
    let mut failing = allows("22");
    failing["tests"] = json!([{ "src": "rig@", "accept": [format!("rig@:{PORT}")] }]);
    let broken = json!({ "acls": [{ "action": "accept", "src": ["tag:none"], "dst": ["*:*"] }] });
    for (policy, why) in [(failing, "test(s) failed"), (broken, "line 1, acls[0].src[0]")] {
        let refused = try_set(&tailnet, &policy, "");
        assert!(!refused.ok && refused.stderr.contains(why), "{refused:?}");
    }
    let dry = try_set(&tailnet, &allows("22"), "--dry-run");
    assert!(dry.ok && dry.stdout.contains("- one -> other:7000-7200"), "{dry:?}");
    tailnet.coordinator.kill();
    tailnet.coordinator.restart();
    let kept = tailnet.coordinator.command("policy get");
    assert_eq!(kept.trim(), first.to_string());
    assert!(connects(&one.host, &other));
    set(&tailnet, &allows("22"));
    eventually("it is denied", PATIENCE, || !connects(&one.host, &other));
    let history = tailnet.coordinator.command("policy history --output json");
    let history: Vec<Value> = serde_json::from_str(&history).expect("a list");
    assert_eq!(history.len(), 2);
}
