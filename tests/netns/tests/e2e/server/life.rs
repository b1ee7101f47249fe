//! Nodes that log out, reconnect, expire, and are deleted, renamed or tagged.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use netns::{Family, Member, MemberKind, Tailnet, Uplink, eventually};

use super::{PATIENCE, is_online, join, number, start};

const BOTH: [MemberKind; 2] = [MemberKind::Tailscaled, MemberKind::Linerate];

/// The state of a member.
fn state(member: &Member) -> String {
    member.status()["BackendState"].as_str().unwrap_or_default().to_owned()
}

fn sees(member: &Member, name: &str) -> bool {
    let status = member.status();
    let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
    peers.into_iter().any(|peer| peer["DNSName"] == format!("{name}.rig.test."))
}

#[test]
fn a_stock_client_gets_its_address_again_after_a_logout_and_login() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Tailscaled, "");
    let other = join(&tailnet, "other", MemberKind::Linerate, "");
    one.reaches(&other, Family::V4);
    let out = one.tailscale("logout");
    assert!(out.ok, "{out:?}");
    assert_eq!(state(&one), "NeedsLogin");
    let key = tailnet.coordinator.new_auth_key("");
    let again = one.log_in(tailnet.coordinator.url(), &key, "");
    assert!(again.ok, "{again:?}");
    let addresses = one.status()["TailscaleIPs"].to_string();
    assert!(addresses.contains(one.addresses.of(Family::V4)), "{addresses}");
    other.reaches(&one, Family::V4);
    let used = join(&tailnet, "used", MemberKind::Tailscaled, "");
    used.tailscale("logout");
    let refused = used.log_in(tailnet.coordinator.url(), &key, "");
    assert!(!refused.ok && refused.stderr.contains("used already"), "{refused:?}");
}

#[test]
fn a_node_with_an_expired_key_and_a_deleted_node_must_log_in() {
    let Some(tailnet) = start() else { return };
    let [theirs, ours] =
        [("theirs", BOTH[0]), ("ours", BOTH[1])].map(|(name, kind)| join(&tailnet, name, kind, ""));
    theirs.reaches(&ours, Family::V4);
    let (coordinator, id) = (&tailnet.coordinator, number(&tailnet, "theirs"));
    coordinator.command(&format!("nodes expire -i {id}"));
    eventually("an expired node needs a login", PATIENCE, || state(&theirs) == "NeedsLogin");
    coordinator.command(&format!("nodes expire -i {id} --disable"));
    eventually("a node whose time was extended runs", PATIENCE, || state(&theirs) == "Running");
    ours.reaches(&theirs, Family::V4);
    coordinator.command(&format!("nodes delete -i {id} --force"));
    eventually("its peers are notified", PATIENCE, || !sees(&ours, "theirs"));
    eventually("a deleted node needs a login", PATIENCE, || state(&theirs) == "NeedsLogin");
    let again = theirs.log_in(coordinator.url(), coordinator.auth_key(), "--force-reauth");
    assert!(again.ok, "{again:?}");
    eventually("it is a node again", PATIENCE, || sees(&ours, "theirs"));
}

#[test]
fn names_are_unique_and_the_administrator_changes_them() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "same", MemberKind::Tailscaled, "");
    let other = join(&tailnet, "other", MemberKind::Tailscaled, "");
    let set = other.tailscale("set --hostname=same");
    assert!(set.ok, "{set:?}");
    eventually("the second has a number", PATIENCE, || sees(&one, "same-1"));
    let id = number(&tailnet, "same-1");
    tailnet.coordinator.command(&format!("nodes rename -i {id} printer"));
    eventually("it has its new name", PATIENCE, || sees(&one, "printer"));
    tailnet.coordinator.command(&format!("nodes tag -i {id} -t tag:paper"));
    eventually("it has its tag", PATIENCE, || {
        other.status()["Self"]["Tags"].to_string().contains("tag:paper")
    });
}

#[test]
fn an_ephemeral_node_is_deleted_at_its_logout() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Linerate, "");
    let host = tailnet.host("brief", netns::Uplink::Switch);
    let key = tailnet.coordinator.new_auth_key("--ephemeral");
    let url = tailnet.coordinator.url();
    let brief = Member::join_at(url, &key, host, MemberKind::Tailscaled, "");
    one.reaches(&brief, Family::V4);
    assert!(is_online(&tailnet, "brief"));
    assert!(brief.tailscale("logout").ok);
    eventually("it is deleted", PATIENCE, || {
        let nodes = tailnet.coordinator.nodes();
        nodes.iter().all(|node| node["given_name"] != "brief")
    });
    eventually("its peers are notified", PATIENCE, || !sees(&one, "brief"));
}

#[test]
fn a_machine_without_a_key_is_admitted_by_an_administrator() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Tailscaled, "");
    let member = Member::start(tailnet.host("guest", netns::Uplink::Switch), BOTH[0]);
    let url = tailnet.coordinator.url().to_owned();
    let output =
        member.tailscale(&format!("up --login-server={url} --hostname=guest --timeout=3s"));
    assert!(!output.ok, "it is not admitted yet: {output:?}");
    let number =
        output.stderr.split("/register/").nth(1).and_then(|rest| rest.split_whitespace().next());
    let number = number.unwrap_or_else(|| panic!("a URL with a number: {output:?}"));
    tailnet.coordinator.command(&format!("nodes register --user rig --key {number}"));
    eventually("it runs", PATIENCE, || state(&member) == "Running");
    eventually("its peers see it", PATIENCE, || sees(&one, "guest"));
}

/// A command is acknowledged once its answer is printed.
#[test]
fn acknowledged_commands_survive_any_crash() {
    let Some(mut tailnet) = start() else { return };
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..5 {
        let made = AtomicU32::new(0);
        let names: Vec<String> = thread::scope(|scope| {
            let maker = scope.spawn(|| {
                let mut names = Vec::new();
                for number in 0.. {
                    let name = format!("user-{round}-{number}");
                    if !tailnet.coordinator.attempt(&format!("users create {name}")).ok {
                        return names;
                    }
                    names.push(name);
                    made.fetch_add(1, SeqCst);
                }
                names
            });
            eventually("some users are made", PATIENCE, || made.load(SeqCst) >= 3 + round);
            tailnet.coordinator.signal("KILL");
            maker.join().expect("the maker ends when the server does")
        });
        acknowledged.extend(names);
        tailnet.coordinator.restart();
        check(&tailnet, &acknowledged);
    }
    assert!(acknowledged.len() >= 20, "{acknowledged:?}");
}

fn check(tailnet: &Tailnet, acknowledged: &[String]) {
    let users = tailnet.coordinator.command("users list --output json");
    let users: Vec<serde_json::Value> = serde_json::from_str(&users).expect("a list of users");
    let kept: Vec<&str> = users.iter().filter_map(|user| user["name"].as_str()).collect();
    let lost: Vec<&String> =
        acknowledged.iter().filter(|name| !kept.contains(&name.as_str())).collect();
    assert!(lost.is_empty(), "{lost:?} of {kept:?}");
}

/// The server's current key, which is public.
fn server_key(tailnet: &Tailnet) -> String {
    let url = format!("{}/key?v=121", tailnet.coordinator.url());
    let keys = tailnet.coordinator.host.attempt(format!("curl -sk '{url}'")).stdout;
    let keys: serde_json::Value = serde_json::from_str(&keys).expect("keys in JSON");
    keys["publicKey"].as_str().expect("a key of Noise").to_owned()
}

#[test]
fn a_server_with_another_key_is_refused_until_the_user_accepts_it() {
    let Some(mut tailnet) = start() else { return };
    let [one, other] = ["one", "other"].map(|name| join(&tailnet, name, MemberKind::Linerate, ""));
    one.wait_until_direct(&other);
    other.wait_until_direct(&one);
    let says = |member: &Member, what| member.attempt("status").stdout.contains(what);
    let real = server_key(&tailnet);

    tailnet.coordinator.kill();
    let host = tailnet.coordinator.host.clone();
    host.run("cd /run/rig/coordinator && mkdir real && mv noise.key store.sqlite* real/");
    tailnet.coordinator.restart();
    let impostor = server_key(&tailnet);
    assert_ne!(impostor, real);
    for member in [&one, &other] {
        eventually("the impostor is named", PATIENCE, || says(member, "it may be an impostor"));
    }
    one.reaches(&other, Family::V4);
    assert!(tailnet.coordinator.nodes().is_empty(), "nobody registers");
    let pinned = Member::start(tailnet.host("pinned", Uplink::Switch), MemberKind::Linerate);
    let flags = format!("--server-key={real} --timeout=10s");
    let refused = pinned.log_in(tailnet.coordinator.url(), "of-no-use", &flags);
    assert!(!refused.ok && refused.stderr.contains("it may be an impostor"), "{refused:?}");
    let accepted = other.attempt(&format!("set tailnet0 --server-key {impostor}"));
    assert!(accepted.ok, "{accepted:?}");
    eventually("the new key is accepted", PATIENCE, || !says(&other, "it may be an impostor"));

    tailnet.coordinator.kill();
    host.run("cd /run/rig/coordinator && rm noise.key store.sqlite* && mv real/* .");
    tailnet.coordinator.restart();
    eventually("the server is back", PATIENCE, || !says(&one, "impostor"));
    eventually("the accepted key differs", PATIENCE, || says(&other, "impostor"));
    let flags = format!("--server-key={real}");
    let joined = pinned.log_in(tailnet.coordinator.url(), tailnet.coordinator.auth_key(), &flags);
    assert!(joined.ok, "{joined:?}");
}
