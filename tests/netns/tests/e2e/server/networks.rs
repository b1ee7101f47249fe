//! Several networks of one server, selected by host name, with equal names and addresses in both.

use std::net::TcpListener;

use netns::{
    CoordinatorKind, Family, Member, MemberKind, Nat, Path, Switch, Tailnet, Uplink, eventually,
};
use serde_json::{Value, json};

use crate::server::{PATIENCE, start};

use MemberKind::{Linerate, Tailscaled};

/// The host names of both networks, which resolve to one machine.
const HOSTS: [&str; 2] = ["one.test", "two.test"];
const PORT: u16 = 7200;

/// A network of the server: its index in [`HOSTS`].
#[derive(Clone, Copy)]
struct Network(usize);

impl Network {
    fn url(self) -> String {
        format!("https://{}", HOSTS[self.0])
    }

    /// Runs a command for this network.
    fn command(self, tailnet: &Tailnet, words: &str) -> String {
        tailnet.coordinator.command(&format!("{} {words}", self.option()))
    }

    /// The option that selects this network.
    fn option(self) -> &'static str {
        ["", "--network two"][self.0]
    }

    fn key(self, tailnet: &Tailnet) -> String {
        tailnet.coordinator.new_auth_key(&format!("--reusable {}", self.option()))
    }

    fn nodes(self, tailnet: &Tailnet) -> Vec<Value> {
        let nodes = self.command(tailnet, "nodes list --output json");
        serde_json::from_str(&nodes).expect("a list of nodes")
    }

    fn join(self, tailnet: &Tailnet, key: &str, name: &str, kind: MemberKind) -> Member {
        Member::join_at(&self.url(), key, host_with_names(tailnet, name, Uplink::Switch), kind, "")
    }

    fn set_policy(self, tailnet: &Tailnet, policy: &Value) {
        let file = tailnet.coordinator.host.write("policy.json", &policy.to_string());
        self.command(tailnet, &format!("policy set --file {file}"));
    }
}

/// A host that resolves both names.
fn host_with_names(tailnet: &Tailnet, name: &str, uplink: Uplink) -> netns::Host {
    let host = tailnet.host(name, uplink);
    let addresses = Switch::coordinator();
    for family in Family::ALL {
        let line = format!("{} {}", addresses.of(family), HOSTS.join(" "));
        host.run(format!("echo '{line}' >>/etc/hosts"));
    }
    host
}

/// A server with both networks.
fn with_both() -> Option<Tailnet> {
    let mut tailnet = start()?;
    let certificate = &tailnet.certificate;
    let named = certificate.of_names(certificate.addresses.clone(), &HOSTS);
    tailnet.coordinator.host.write("tls.pem", &named.chain);
    tailnet.coordinator.host.write_secret("tls.key", &named.key);
    tailnet.coordinator.change("https://10.1.0.1", &Network(0).url());
    tailnet.coordinator.change("", "metrics_listen = [\"127.0.0.1:9587\"]\n");
    let addresses = Switch::coordinator();
    let [v4, v6] = Family::ALL.map(|family| addresses.of(family).to_owned());
    tailnet.coordinator.configure(&format!(
        "[networks.two]\nserver_url = \"https://two.test\"\nbase_domain = \"rig.test\"\n\
         [networks.two.derp]\nregion_code = \"two\"\nipv4 = \"{v4}\"\nipv6 = \"{v6}\"\n"
    ));
    Network(1).command(&tailnet, "users create rig");
    Some(tailnet)
}

/// The names of a member's peers.
fn peers(member: &Member) -> Vec<String> {
    let status = member.status();
    let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
    let name = |peer: &Value| peer["HostName"].as_str().unwrap_or_default().to_owned();
    let mut names: Vec<String> = peers.map(name).collect();
    names.sort_unstable();
    names
}

fn connects(from: &Member, to: &str) -> bool {
    let words = format!("exec 3<>/dev/tcp/{to}/{PORT}");
    from.host.attempt(format!("timeout 0.5 bash -c '{words}'")).ok
}

#[test]
fn two_networks_of_one_server_are_isolated() {
    let Some(mut tailnet) = with_both() else { return };
    let networks = [Network(0), Network(1)];
    let keys = networks.map(|network| network.key(&tailnet));
    let one = [("a", Tailscaled), ("b", Linerate)]
        .map(|(name, kind)| networks[0].join(&tailnet, &keys[0], name, kind));
    let two = [("c", Tailscaled), ("d", Linerate), ("e", Tailscaled)]
        .map(|(name, kind)| networks[1].join(&tailnet, &keys[1], name, kind));
    // The first nodes of both networks have the same address and, from here on, the same name.
    for family in Family::ALL {
        assert_eq!(one[0].addresses.of(family), two[0].addresses.of(family));
    }
    for network in networks {
        network.command(&tailnet, "nodes rename --identifier 1 twin");
    }
    for family in Family::ALL {
        one[0].reaches(&one[1], family);
        one[1].reaches(&one[0], family);
        two[0].reaches(&two[1], family);
        two[1].reaches(&two[2], family);
    }
    assert_eq!(peers(&one[0]), ["b"]);
    assert_eq!(peers(&one[1]), ["a"]);
    assert_eq!(peers(&two[1]), ["c", "e"]);
    // Only one network has a node with the third address.
    let third = two[2].addresses.of(Family::V4);
    let _listening = two[2].host.inside(|| TcpListener::bind(("0.0.0.0", PORT)).expect("free"));
    assert!(connects(&two[1], third) && connects(&two[0], third));
    assert!(!connects(&one[0], third) && !connects(&one[1], third));

    // A policy applies to its network only.
    networks[1].set_policy(&tailnet, &json!({ "acls": [] }));
    eventually("no peer is shown in the second", PATIENCE, || peers(&two[0]).is_empty());
    eventually("and no peer is reached", PATIENCE, || !connects(&two[1], third));
    one[0].reaches(&one[1], Family::V4);
    assert_eq!(peers(&one[0]), ["b"]);
    networks[1].set_policy(
        &tailnet,
        &json!({ "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }] }),
    );
    eventually("the second reaches again", PATIENCE, || connects(&two[0], third));

    // A key creates nodes in its own network only.
    let stranger = Member::start(host_with_names(&tailnet, "f", Uplink::Switch), Tailscaled);
    let refused = stranger.log_in(&networks[0].url(), &keys[1], "");
    assert!(!refused.ok, "{refused:?}");
    assert_eq!(networks.map(|network| network.nodes(&tailnet).len()), [2, 3]);
    let list = tailnet.coordinator.command("networks list --output json");
    let list: Value = serde_json::from_str(&list).expect("a list");
    for (at, (nodes, name)) in [(2, Value::Null), (3, json!("two"))].into_iter().enumerate() {
        let own = &list[at];
        assert_eq!((&own["name"], &own["nodes"], &own["users"]), (&name, &json!(nodes), &json!(1)));
        assert_eq!(own["server_url"], networks[at].url());
    }
    let counters = tailnet.coordinator.host.run("curl -sS http://127.0.0.1:9587/metrics");
    for line in ["linerate_server_nodes 2", "linerate_server_nodes{network=\"two\"} 3"] {
        assert!(counters.lines().any(|own| own == line), "no {line} in {counters}");
    }

    tailnet.coordinator.kill();
    tailnet.coordinator.restart();
    one[1].reaches(&one[0], Family::V6);
    two[0].reaches(&two[2], Family::V6);
    assert_eq!(networks.map(|network| network.nodes(&tailnet).len()), [2, 3]);
}

#[test]
fn an_unknown_name_or_one_that_differs_from_tls_is_refused() {
    let Some(tailnet) = with_both() else { return };
    assert_eq!(tailnet.coordinator.kind(), CoordinatorKind::Linerate);
    let host = &tailnet.coordinator.host;
    let status = |name: &str, headers: &str| {
        let request = host.attempt(format!(
            "curl -s -k -o /dev/null -w %{{http_code}} -m 10 --connect-to ::10.1.0.1: {headers} \
             https://{name}/key?v=131"
        ));
        request.stdout.trim().to_owned()
    };
    assert_eq!([status("one.test", ""), status("two.test", "")], ["200", "200"]);
    assert_eq!(status("three.test", ""), "404");
    assert_eq!(status("10.1.0.1", ""), "404");
    assert_eq!(status("one.test", "-H 'Host: two.test'"), "421");
    assert_eq!(status("10.1.0.1", "-H 'Host: two.test'"), "200", "without a name for TLS");
}

#[test]
fn each_network_has_its_own_relay() {
    let Some(tailnet) = with_both() else { return };
    for (at, region) in [(0, "rig"), (1, "two")] {
        let network = Network(at);
        let key = network.key(&tailnet);
        let [one, other] = [("theirs", Tailscaled), ("ours", Linerate)].map(|(name, kind)| {
            let host =
                host_with_names(&tailnet, &format!("{name}{at}"), Uplink::Behind(Nat::WithoutUdp));
            Member::join_at(&network.url(), &key, host, kind, "")
        });
        one.reaches(&other, Family::V4);
        other.reaches(&one, Family::V4);
        assert_eq!(other.path_to(&one), Path::Relay(region.to_owned()));
    }
}
