//! linerate-server with stock tailscaled and linerate as clients, and its stored state.

mod acme;
mod data_paths;
mod first;
mod hostile;
mod life;
mod lock;
pub(crate) mod mesh;
mod networks;
mod oidc;
mod operations;
mod policy;
mod proxies;
mod replicas;
mod routers;
mod ssh;
mod stock;

use std::time::Duration;

use netns::{
    CoordinatorKind, Family, Member, MemberKind, Nat, Path, Tailnet, Uplink, eventually, ping,
};

/// Time in which changes reach all members.
const PATIENCE: Duration = Duration::from_secs(30);

fn start() -> Option<Tailnet> {
    Tailnet::start_with(CoordinatorKind::Linerate)
}

fn join(tailnet: &Tailnet, name: &str, kind: MemberKind, flags: &str) -> Member {
    Member::join(tailnet, tailnet.host(name, Uplink::Switch), kind, flags)
}

/// The coordinator's id of a node.
fn number(tailnet: &Tailnet, name: &str) -> i64 {
    let nodes = tailnet.coordinator.nodes();
    let node = nodes.iter().find(|node| node["given_name"] == name);
    node.and_then(|node| node["id"].as_i64()).expect("the node is there")
}

fn is_online(tailnet: &Tailnet, name: &str) -> bool {
    let nodes = tailnet.coordinator.nodes();
    nodes.iter().any(|node| node["given_name"] == name && node["online"] == true)
}

/// The block of a manual with these words in its first line.
fn block<'a>(manual: &'a str, words: &str) -> &'a str {
    let text = manual.split(&format!("```{words}\n")).nth(1);
    let text = text.and_then(|rest| rest.split("```").next());
    text.unwrap_or_else(|| panic!("the manual has no {words}"))
}

#[test]
fn stock_clients_connect_directly_and_resolve_each_others_names() {
    let Some(tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Tailscaled, "");
    let other = join(&tailnet, "other", MemberKind::Tailscaled, "");
    for family in Family::ALL {
        one.reaches(&other, family);
    }
    one.wait_until_direct(&other);
    let status = one.status();
    assert_eq!(status["MagicDNSSuffix"], "rig.test");
    assert!(status["Peer"].to_string().contains("other.rig.test."), "{status}");
    eventually("both are online", PATIENCE, || {
        is_online(&tailnet, "one") && is_online(&tailnet, "other")
    });
}

#[test]
fn stock_client_and_linerate_use_the_relay_without_udp() {
    let Some(tailnet) = start() else { return };
    let [one, other] = [MemberKind::Tailscaled, MemberKind::Linerate].map(|kind| {
        let name = if kind == MemberKind::Linerate { "ours" } else { "theirs" };
        Member::join(&tailnet, tailnet.host(name, Uplink::Behind(Nat::WithoutUdp)), kind, "")
    });
    one.reaches(&other, Family::V4);
    other.reaches(&one, Family::V6);
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert_eq!(path, Path::Relay("rig".to_owned()));
    }
    let pings = ping(&one.host, format!("-c 20 -i 0.05 {}", other.addresses.of(Family::V4)));
    assert!(pings.received + 1 >= pings.sent, "{}", pings.text);
}

#[test]
fn after_a_crash_the_same_network_continues() {
    let Some(mut tailnet) = start() else { return };
    let one = join(&tailnet, "one", MemberKind::Tailscaled, "");
    let other = join(&tailnet, "other", MemberKind::Linerate, "");
    one.reaches(&other, Family::V4);
    let key = tailnet.coordinator.new_auth_key("");
    let shape = |tailnet: &Tailnet| {
        let nodes = tailnet.coordinator.nodes();
        let shape = |node: &serde_json::Value| {
            let fields = ["id", "given_name", "ip_addresses", "node_key", "machine_key"];
            fields.map(|field| node[field].to_string())
        };
        nodes.iter().map(shape).collect::<Vec<_>>()
    };
    let before = shape(&tailnet);
    tailnet.coordinator.kill();
    one.reaches(&other, Family::V6);
    tailnet.coordinator.restart();
    assert_eq!(shape(&tailnet), before);
    eventually("both are online again", PATIENCE, || {
        is_online(&tailnet, "one") && is_online(&tailnet, "other")
    });
    let host = tailnet.host("third", Uplink::Switch);
    let third = Member::join_at(tailnet.coordinator.url(), &key, host, MemberKind::Tailscaled, "");
    for member in [&one, &other] {
        member.reaches(&third, Family::V4);
    }
}
