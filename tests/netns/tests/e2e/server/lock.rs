//! Tailnet lock with stock clients and linerate in one network of linerate-server.

use netns::{Family, Member, MemberKind, Tailnet, eventually};
use serde_json::Value;

use super::replicas::{Which, World};
use super::{PATIENCE, join, number, start};

/// The lock status of a member, stock or linerate, from `tailscale lock`.
fn lock(member: &Member) -> Value {
    let output = member.tailscale("lock status --json");
    serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn is_on(member: &Member) -> bool {
    lock(member)["Enabled"] == true
}

/// The first word of the text with this prefix.
fn word(text: &str, begins: &str) -> String {
    let word = text.split_whitespace().find(|word| word.starts_with(begins));
    word.unwrap_or_else(|| panic!("{begins} in {text}")).to_owned()
}

fn own_key(member: &Member) -> String {
    // The text output shows it only after the key that signed the node's.
    let key = lock(member)["PublicKey"].as_str().expect("a key").to_owned();
    key.replacen("nlpub:", "tlpub:", 1)
}

fn node_key(tailnet: &Tailnet, name: &str) -> String {
    let nodes = tailnet.coordinator.nodes();
    let node = nodes.iter().find(|node| node["given_name"] == name).expect("the node is there");
    node["node_key"].as_str().expect("a key").to_owned()
}

fn must(member: &Member, command: &str) -> String {
    let done = member.tailscale(command);
    assert!(done.ok, "{command}: {done:?}");
    done.stdout
}

/// Whether a member reaches another.
fn reaches_once(member: &Member, other: &Member) -> bool {
    let to = other.addresses.of(Family::V4);
    member.host.attempt(format!("ping -c 1 -W 1 {to}")).ok
}

/// Turns tailnet lock on at a member, with these trusted keys. Returns a disablement secret.
fn turn_on(tailnet: &Tailnet, by: &Member, name: &str, keys: &str) -> String {
    let init = format!("lock init --confirm {keys}");
    let refused = by.tailscale(&init);
    assert!(!refused.ok && refused.stderr.contains("lock allow"), "{refused:?}");
    tailnet.coordinator.command(&format!("lock allow -i {}", number(tailnet, name)));
    word(&must(by, &init), "disablement-secret:")
}

fn network(first: &str, second: &str) -> Option<(Tailnet, Member, Member)> {
    let tailnet = start()?;
    let theirs = join(&tailnet, first, MemberKind::Tailscaled, "");
    let ours = join(&tailnet, second, MemberKind::Linerate, "");
    Some((tailnet, theirs, ours))
}

#[test]
fn a_stock_client_turns_tailnet_lock_on_signs_changes_keys_and_turns_it_off() {
    let Some((tailnet, theirs, ours)) = network("theirs", "ours") else { return };
    let secret = turn_on(&tailnet, &theirs, "theirs", &own_key(&theirs));
    for member in [&theirs, &ours] {
        eventually("it is on", PATIENCE, || is_on(member));
        eventually("its key is signed", PATIENCE, || {
            lock(member)["NodeKeySignature"].is_object() || lock(member)["NodeKeySigned"] == true
        });
    }
    theirs.reaches(&ours, Family::V4);
    ours.reaches(&theirs, Family::V6);
    let third = join(&tailnet, "third", MemberKind::Tailscaled, "");
    for member in [&theirs, &ours] {
        eventually("the third is locked out", PATIENCE, || {
            lock(member)["FilteredPeers"].to_string().contains("third")
        });
        assert!(!reaches_once(member, &third));
    }
    must(&theirs, &format!("lock sign {} {}", node_key(&tailnet, "third"), own_key(&third)));
    for member in [&theirs, &ours] {
        member.reaches(&third, Family::V4);
    }
    // It signs its next key itself.
    let before = node_key(&tailnet, "third");
    let key = tailnet.coordinator.new_auth_key("");
    let again = third.log_in(tailnet.coordinator.url(), &key, "--force-reauth");
    assert!(again.ok, "{again:?}");
    assert_ne!(node_key(&tailnet, "third"), before);
    for member in [&theirs, &ours] {
        member.reaches(&third, Family::V4);
    }
    // linerate's key is trusted, signs, and is removed.
    must(&theirs, &format!("lock add {}", own_key(&ours)));
    eventually("linerate knows", PATIENCE, || {
        lock(&ours)["TrustedKeys"].as_array().map(Vec::len) == Some(2)
    });
    let fourth = join(&tailnet, "fourth", MemberKind::Tailscaled, "");
    assert!(!reaches_once(&theirs, &fourth));
    must(&ours, &format!("lock sign {} {}", node_key(&tailnet, "fourth"), own_key(&fourth)));
    theirs.reaches(&fourth, Family::V4);
    must(&theirs, &format!("lock remove {}", own_key(&ours)));
    eventually("linerate's key is removed", PATIENCE, || {
        lock(&ours)["TrustedKeys"].as_array().map(Vec::len) == Some(1)
    });
    // Its signatures were replaced.
    ours.reaches(&fourth, Family::V4);
    let log = must(&theirs, "lock log");
    for change in ["remove-key", "add-key", "checkpoint"] {
        assert!(log.contains(change), "{log}");
    }
    assert_eq!(must(&ours, "lock log"), log);
    let wrong = secret.replace(&secret[20..30], "0000000000");
    let refused = theirs.tailscale(&format!("lock disable {wrong}"));
    assert!(!refused.ok && is_on(&theirs), "{refused:?}");
    must(&theirs, &format!("lock disable {secret}"));
    for member in [&theirs, &ours, &third, &fourth] {
        eventually("it is off", PATIENCE, || !is_on(member));
    }
    let fifth = join(&tailnet, "fifth", MemberKind::Tailscaled, "");
    ours.reaches(&fifth, Family::V4);
}

/// A linerate, driven by its own commands.
struct Signer(Member);

impl Signer {
    fn run(&self, command: &str) -> String {
        let done = self.0.attempt(command);
        assert!(done.ok, "{command}: {done:?}");
        done.stdout
    }

    fn sign(&self, tailnet: &Tailnet, name: &str, node: &Member) {
        self.run(&format!("lock sign {} {}", node_key(tailnet, name), own_key(node)));
    }

    /// Whether the status has a line that starts with `what` and contains `word`.
    fn status_has(&self, what: &str, word: &str) -> bool {
        let status = self.run("lock status");
        status.lines().any(|line| line.starts_with(what) && line.contains(word))
    }
}

fn trusted_by(member: &Member) -> usize {
    lock(member)["TrustedKeys"].as_array().map_or(0, Vec::len)
}

#[test]
fn linerate_turns_tailnet_lock_on_signs_with_a_stock_client_and_turns_it_off() {
    let Some((tailnet, theirs, ours)) = network("theirs", "ours") else { return };
    let ours = Signer(ours);
    assert!(ours.status_has("tailnet lock", "off"));
    let own = word(&ours.run("lock"), "tlpub:");
    let init = format!("lock init {own} {}", own_key(&theirs));
    let refused = ours.0.attempt(&init);
    assert!(!refused.ok && refused.stderr.contains("lock allow"), "{refused:?}");
    tailnet.coordinator.command(&format!("lock allow -i {}", number(&tailnet, "ours")));
    let secret = word(&ours.run(&init), "disablement-secret:");
    for member in [&theirs, &ours.0] {
        eventually("it is on", PATIENCE, || is_on(member));
    }
    assert!(ours.status_has("tailnet lock", "on") && ours.status_has("this node", "signed"));
    assert!(ours.status_has("trusted", &own) && ours.status_has("trusted", &own_key(&theirs)));
    theirs.reaches(&ours.0, Family::V4);
    // Each signs a node of the other program.
    let [third, fourth] = [("third", MemberKind::Tailscaled), ("fourth", MemberKind::Linerate)]
        .map(|(name, kind)| join(&tailnet, name, kind, ""));
    for name in ["third", "fourth"] {
        eventually("it is locked out", PATIENCE, || ours.status_has("locked out", name));
    }
    for other in [&third, &fourth] {
        assert!(!reaches_once(&theirs, other) && !reaches_once(&ours.0, other));
    }
    ours.sign(&tailnet, "third", &third);
    must(&theirs, &format!("lock sign {} {}", node_key(&tailnet, "fourth"), own_key(&fourth)));
    for (one, other) in [(&theirs, &third), (&ours.0, &fourth), (&fourth, &third)] {
        one.reaches(other, Family::V4);
        other.reaches(one, Family::V4);
    }
    eventually("none is locked out", PATIENCE, || !ours.status_has("locked out", ""));
    keys_change(&theirs, &ours, &fourth);
    third.reaches(&fourth, Family::V4);
    assert!(!ours.0.attempt("lock disable disablement-secret:00").ok);
    ours.run(&format!("lock disable {secret}"));
    for member in [&theirs, &ours.0, &third, &fourth] {
        eventually("it is off", PATIENCE, || !is_on(member));
    }
    let audit = tailnet.coordinator.command("audit");
    let signed = ["third", "fourth"].map(|name| format!("sign the key of {name}"));
    for deed in ["turn tailnet lock on", &signed[0], &signed[1], "turn tailnet lock off"] {
        assert!(audit.contains(deed), "{deed} in {audit}");
    }
}

/// A stock client's key is removed and added again; its signatures are replaced.
fn keys_change(theirs: &Member, ours: &Signer, untrusted: &Member) {
    let key = own_key(theirs);
    ours.run(&format!("lock remove {key}"));
    eventually("the stock client is notified", PATIENCE, || trusted_by(theirs) == 1);
    theirs.reaches(untrusted, Family::V4);
    ours.run(&format!("lock add {key}"));
    eventually("the stock client is notified again", PATIENCE, || trusted_by(theirs) == 2);
    let refused = untrusted.attempt(&format!("lock add {}", own_key(untrusted)));
    assert!(!refused.ok && refused.stderr.contains("not trusted"), "{refused:?}");
    let log = ours.run("lock log");
    let changes: Vec<_> = log.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(changes, ["add-key", "remove-key", "checkpoint"]);
}

fn is_locked_out(by: &Member, name: &str) -> bool {
    lock(by)["FilteredPeers"].to_string().contains(name)
}

#[test]
fn signatures_made_at_one_server_are_verified_by_nodes_of_another() {
    let Some(mut world) = World::start() else { return };
    let theirs = world.join("theirs", MemberKind::Tailscaled, Which::First);
    let other = world.join("other", MemberKind::Tailscaled, Which::Second);
    let ours = world.join("ours", MemberKind::Linerate, Which::Second);
    turn_on(&world.tailnet, &theirs, "theirs", &own_key(&theirs));
    for member in [&theirs, &other, &ours] {
        eventually("it is on", PATIENCE, || is_on(member));
    }
    theirs.reaches(&other, Family::V4);
    ours.reaches(&theirs, Family::V4);
    let third = world.join("third", MemberKind::Tailscaled, Which::Second);
    for member in [&theirs, &other, &ours] {
        eventually("the third is locked out", PATIENCE, || is_locked_out(member, "third"));
        assert!(!reaches_once(member, &third));
    }
    let key = own_key(&third);
    must(&theirs, &format!("lock sign {} {key}", node_key(&world.tailnet, "third")));
    for member in [&theirs, &other, &ours] {
        member.reaches(&third, Family::V4);
    }
    // The signer continues by the remaining server.
    world.lose_first();
    let fourth = world.join("fourth", MemberKind::Linerate, Which::First);
    eventually("the fourth is locked out", PATIENCE, || is_locked_out(&other, "fourth"));
    assert!(!reaches_once(&other, &fourth));
    let (node, key) = (node_key(&world.tailnet, "fourth"), own_key(&fourth));
    eventually("it is signed", PATIENCE, || {
        theirs.tailscale(&format!("lock sign {node} {key}")).ok
    });
    for member in [&theirs, &other, &ours] {
        member.reaches(&fourth, Family::V4);
    }
}

#[test]
fn an_exported_audit_log_is_verified_and_a_change_is_reported() {
    let Some(tailnet) = start() else { return };
    let coordinator = &tailnet.coordinator;
    for name in ["a", "b", "c"] {
        coordinator.command(&format!("users create {name}"));
    }
    let whole = coordinator.command("audit export");
    let verify = |name: &str, text: &str| {
        let file = coordinator.host.write(name, text);
        let done = coordinator.attempt(&format!("audit verify {file}"));
        (done.ok, format!("{}{}", done.stdout, done.stderr))
    };
    let (is_good, message) = verify("whole.jsonl", &whole);
    assert!(is_good && message.contains("valid"), "{message}");
    coordinator.command("users create d");
    assert!(verify("older.jsonl", &whole).0, "the store leads from there to the head");
    let lines: Vec<&str> = whole.lines().collect();
    let joined = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let without_second = [&lines[..1], &lines[2..]].concat();
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    let without_last = joined(&lines[..lines.len() - 1]);
    for (name, text, expected) in [
        ("changed.jsonl", whole.replace("user a", "user x"), "one of them was changed"),
        ("cut.jsonl", joined(&without_second), "entry 3 does not follow entry 1"),
        ("swapped.jsonl", joined(&swapped), "entry 3"),
        ("no-json.jsonl", format!("{whole}x\n"), "line"),
    ] {
        let (is_good, output) = verify(name, &text);
        assert!(!is_good && output.contains(expected), "{name}: {output}");
    }
    assert!(verify("shorter.jsonl", &without_last).0, "the following entries are in the store");
}
