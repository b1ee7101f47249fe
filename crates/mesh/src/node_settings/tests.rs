use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use tailnet::map_messages::MapResponse;

use super::*;
use crate::peer_relay::MAY_ALLOCATE;

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn map(response: Value) -> NetworkMap {
    let mut map = NetworkMap::default();
    let changes = map.apply(MapResponse::read(response.to_string().as_bytes()).unwrap(), NOW);
    assert_eq!(changes.bad, []);
    map
}

fn node(id: u8, more: Value) -> Value {
    let mut node = json!({
        "ID": id, "StableID": format!("s{id}"), "Name": format!("n{id}.tail.net."),
        "Key": NodePublic([id; 32]).to_string(), "Addresses": [format!("100.64.0.{id}/32")],
    });
    for (key, value) in more.as_object().unwrap() {
        node[key] = value.clone();
    }
    node
}

fn made(map: &NetworkMap, prefs: &Prefs) -> Settings {
    settings(map, prefs, &Environment { now: NOW, has_interface: true, ..Environment::default() })
}

fn allowed(settings: &Settings, id: u8) -> Vec<String> {
    let peer = settings.peers.iter().find(|peer| peer.key == NodePublic([id; 32])).unwrap();
    peer.allowed_ips.iter().map(ToString::to_string).collect()
}

#[test]
fn networks_of_peers_are_used_only_if_routes_are_accepted() {
    let nets = json!({"AllowedIPs": ["100.64.0.2/32", "10.0.0.0/8", "0.0.0.0/0", "::/0"]});
    let map =
        map(json!({"Node": node(1, json!({})), "Peers": [node(2, nets), node(3, json!({}))]}));
    let shy = made(&map, &Prefs::new());
    assert_eq!(
        (allowed(&shy, 2), allowed(&shy, 3)),
        (vec!["100.64.0.2/32".into()], vec!["100.64.0.3/32".into()])
    );
    assert_eq!((shy.host.routes.len(), shy.host.exit), (2, false));
    let accepting = made(&map, &Prefs { route_all: true, ..Prefs::new() });
    assert_eq!(allowed(&accepting, 2), ["100.64.0.2/32", "10.0.0.0/8"]);
    let exiting = made(&map, &Prefs { exit_node_id: "s2".into(), ..Prefs::new() });
    assert_eq!(allowed(&exiting, 2), ["100.64.0.2/32", "0.0.0.0/0", "::/0"]);
    assert!(exiting.host.exit && exiting.problems.is_empty());
    assert!(!exiting.host.routes.iter().any(|net| net.prefix_len() == 0));
}

#[test]
fn missing_exit_node_blocks_other_traffic() {
    let map = map(json!({"Node": node(1, json!({})), "Peers": [node(2, json!({}))]}));
    for (id, problem) in [("s9", "not in the network"), ("s2", "n2.tail.net is not an exit node")] {
        let settings = made(&map, &Prefs { exit_node_id: id.into(), ..Prefs::new() });
        assert!(settings.host.exit, "{id}");
        assert!(settings.problems[0].contains(problem), "{:?}", settings.problems);
    }
}

#[test]
fn peer_with_expired_key_is_removed() {
    let expired = json!({"KeyExpiry": "2020-01-01T00:00:00Z"});
    let never = json!({"KeyExpiry": "0001-01-01T00:00:00Z"});
    let said = json!({"Expired": true});
    let peers = [node(2, expired), node(3, never), node(4, said)];
    let map = map(json!({"Node": node(1, json!({})), "Peers": peers}));
    let settings = made(&map, &Prefs::new());
    let keys: Vec<NodePublic> = settings.peers.iter().map(|peer| peer.key).collect();
    assert_eq!(keys, [NodePublic([3; 32])]);
    assert_eq!(settings.paths.len(), 1);
}

#[test]
fn peer_key_expires_by_the_coordinators_clock() {
    let expires = json!({"KeyExpiry": "2030-01-01T00:00:00Z"});
    for (time, peers) in [("2027-01-15T08:00:00Z", 1), ("2031-01-01T00:00:00Z", 0)] {
        let map = map(json!({
            "Node": node(1, json!({})), "Peers": [node(2, expires.clone())], "ControlTime": time,
        }));
        assert_eq!(made(&map, &Prefs::new()).peers.len(), peers, "{time}");
    }
}

#[test]
fn node_attribute_disables_the_peer_relay() {
    for (caps, port) in [(json!({}), Some(0)), (json!({"disable-relay-server": null}), None)] {
        let map = map(json!({"Node": node(1, json!({"CapMap": caps}))}));
        let prefs = Prefs { relay_server_port: Some(0), ..Prefs::new() };
        assert_eq!(made(&map, &prefs).host.relay_server, port);
    }
}

#[test]
fn unsigned_peer_lacks_the_capability() {
    let grant = json!([{"Dsts": ["100.64.0.1/32"], "Caps": [MAY_ALLOCATE]}]);
    for (more, is_granted) in [(json!({}), true), (json!({"UnsignedPeerAPIOnly": true}), false)] {
        let map = map(json!({
            "Node": node(1, json!({})), "Peers": [node(2, more)],
            "PacketFilter": [{"SrcIPs": ["*"], "CapGrant": grant}],
        }));
        let grants = made(&map, &Prefs::new()).grants;
        let (own, peer) = (map.node().unwrap(), map.peer(&NodePublic([2; 32])).unwrap());
        assert_eq!(has_capability(peer, own, MAY_ALLOCATE, &grants), is_granted);
    }
}

#[test]
fn wireguard_only_peers_are_ignored_and_reported() {
    let alone = |id| node(id, json!({"IsWireGuardOnly": true}));
    let peers: Vec<Value> = (2..9).map(alone).chain([node(9, json!({}))]).collect();
    let settings = made(&map(json!({"Node": node(1, json!({})), "Peers": peers})), &Prefs::new());
    assert_eq!(settings.peers.len(), 1);
    let problem = &settings.problems[0];
    assert!(problem.contains("n2.tail.net, ") && problem.contains("n6.tail.net and 2 more"));
}

#[test]
fn host_uses_this_node_for_its_domains_or_all_names() {
    let with = |dns: Value| map(json!({"Node": node(1, json!({})), "DNSConfig": dns}));
    let wish = |dns: Value| made(&with(dns), &Prefs::new()).host.names;
    assert_eq!(wish(json!({})), None);
    let split = wish(
        json!({"Proxied": true, "Domains": ["tail.net"], "Routes": {"corp.": [{"Addr": "10.0.0.1"}]}}),
    );
    let split = split.unwrap();
    assert_eq!(split.servers, ["100.64.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(
        (split.search, split.domains),
        (vec!["tail.net".into()], vec!["corp".into(), "tail.net".into()])
    );
    let all = wish(json!({"Proxied": true, "Resolvers": [{"Addr": "9.9.9.9"}]})).unwrap();
    assert!(all.domains.is_empty());
    let refused = Prefs { corp_dns: false, ..Prefs::new() };
    assert_eq!(made(&with(json!({"Proxied": true})), &refused).host.names, None);
}

#[test]
fn unsupported_servers_are_reported_and_replaced_by_the_hosts() {
    const HTTPS: &str = "https://dns.example/abc";
    let with = |dns: Value| {
        let map = map(json!({"Node": node(1, json!({})), "DNSConfig": dns}));
        let servers = ["192.0.2.53".parse().unwrap()];
        let environment = Environment {
            now: NOW,
            servers: &servers,
            has_interface: true,
            ..Environment::default()
        };
        settings(&map, &Prefs::new(), &environment)
    };
    for server in [HTTPS, "tls://9.9.9.9", "127.0.0.1"] {
        let only = json!([{"Addr": server}]);
        let made = with(json!({"Proxied": true, "Domains": ["tail.net"], "Resolvers": only}));
        let names = made.host.names.expect("names of nodes are resolved");
        assert_eq!(names.domains, ["tail.net"], "{server}: all other names are not asked here");
        assert_eq!(made.names.defaults, []);
        let [problem] = &made.problems[..] else { panic!("{:?}", made.problems) };
        assert!(problem.starts_with("DNS server ") && problem.contains(server), "{problem}");
        assert_eq!(with(json!({"Resolvers": only})).host.names, None, "{server}");
        let split = with(json!({"Routes": {"corp.": only, "here.": []}}));
        let suffixes: Vec<&str> = split.names.routes.iter().map(|(name, _)| &**name).collect();
        let is_refused = server == "127.0.0.1";
        assert_eq!(suffixes.contains(&"corp."), is_refused, "{server}");
        assert!(suffixes.contains(&"here."), "only this node answers");
    }
    let mixed = with(json!({"Proxied": true, "Resolvers": [{"Addr": HTTPS}, {"Addr": "9.9.9.9"}]}));
    assert_eq!(mixed.names.defaults, [magic_dns::Resolver::Plain("9.9.9.9:53".parse().unwrap())]);
    assert!(mixed.host.names.unwrap().domains.is_empty());
    assert!(mixed.problems.iter().any(|problem| problem.contains(HTTPS)));
}

#[test]
fn local_network_has_precedence_over_tailnet_addresses_in_it() {
    let with_v6 = |id: u8| {
        let both = [format!("100.64.0.{id}/32"), format!("fd7a:115c:a1e0::{id}/128")];
        node(id, json!({"Addresses": both, "AllowedIPs": both}))
    };
    let map = map(json!({
        "Node": with_v6(7), "Peers": [with_v6(1), node(9, json!({"Addresses": ["100.65.0.9/32"]}))],
        "DNSConfig": {"Proxied": true, "Domains": ["tail.net"]},
    }));
    let connected = ["100.64.0.20/24".parse().unwrap()];
    let environment = Environment {
        now: NOW,
        connected: &connected,
        has_interface: true,
        ..Environment::default()
    };
    for route_all in [false, true] {
        let made = settings(&map, &Prefs { route_all, ..Prefs::new() }, &environment);
        assert_eq!(allowed(&made, 1), ["fd7a:115c:a1e0::1/128"]);
        assert_eq!(made.host.addresses, ["fd7a:115c:a1e0::7/128".parse().unwrap()]);
        let gateway: IpNet = "100.64.0.1/32".parse().unwrap();
        assert!(!made.host.routes.contains(&gateway), "{:?}", made.host.routes);
        let names = made.host.names.expect("names are resolved by the other address");
        assert_eq!(names.servers, ["fd7a:115c:a1e0::7".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(made.names.peers[0].addresses.len(), 1);
        let [problem] = &made.problems[..] else { panic!("{:?}", made.problems) };
        let expected = "100.64.0.7 of n7.tail.net in 100.64.0.0/24, 100.64.0.1 of n1.tail.net";
        assert!(problem.contains(expected), "{problem}");
    }
    // A configured range has precedence, and without an interface there are no conflicts.
    let ranges = ["100.64.0.0/10".parse().unwrap()];
    for environment in [
        Environment { ranges: &ranges, ..environment },
        Environment { has_interface: false, ..environment },
    ] {
        let made = settings(&map, &Prefs::new(), &environment);
        assert_eq!(allowed(&made, 1).len(), 2);
        assert_eq!(made.problems, [] as [String; 0]);
    }
    // The address of another tailnet on this machine is not a network.
    let connected = ["100.64.0.1/32".parse().unwrap()];
    let made = settings(&map, &Prefs::new(), &Environment { connected: &connected, ..environment });
    assert_eq!(allowed(&made, 1).len(), 2);
}

#[test]
fn all_peers_are_rejected_if_tailnet_lock_is_on_without_keys() {
    let map = map(
        json!({"Node": node(1, json!({})), "Peers": [node(2, json!({}))], "TKAInfo": {"Head": "x"}}),
    );
    let settings = made(&map, &Prefs::new());
    assert!(settings.peers.is_empty() && settings.problems[0].contains("tailnet lock"));
}

#[test]
fn unsigned_peer_has_only_its_own_addresses() {
    let unsigned = json!({
        "UnsignedPeerAPIOnly": true,
        "AllowedIPs": ["100.64.0.2/32", "100.64.0.9/32", "10.0.0.0/8", "0.0.0.0/0", "::/0"],
    });
    let map = map(json!({"Node": node(1, json!({})), "Peers": [node(2, unsigned)]}));
    let prefs = Prefs { route_all: true, exit_node_id: "s2".into(), ..Prefs::new() };
    assert_eq!(allowed(&made(&map, &prefs), 2), ["100.64.0.2/32"]);
}

#[test]
fn addresses_of_this_machine_and_public_addresses_are_refused() {
    let greedy = json!({
        "Addresses": ["100.64.0.2/32", "8.8.8.8/32", "192.168.1.1/32", "127.0.0.1/32", "10.7.0.2/32"],
    });
    let thief = json!({"AllowedIPs": [
        "100.64.0.3/32", "100.64.0.1/32", "100.64.0.2/32", "0.0.0.0/1", "127.0.0.0/8", "10.0.0.0/8",
    ]});
    let second = json!({"AllowedIPs": ["100.64.0.4/32", "10.0.0.0/8"]});
    let map = map(json!({
        "Node": node(1, json!({"Addresses": ["100.64.0.1/32", "127.0.0.1/8"]})),
        "Peers": [node(2, greedy), node(3, thief), node(4, second)],
    }));
    let connected = ["192.168.1.7/24".parse().unwrap()];
    let environment = Environment {
        now: NOW,
        connected: &connected,
        has_interface: true,
        ..Environment::default()
    };
    let shy = settings(&map, &Prefs::new(), &environment);
    assert_eq!(allowed(&shy, 2), ["100.64.0.2/32", "10.7.0.2/32"]);
    let accepting = settings(&map, &Prefs { route_all: true, ..Prefs::new() }, &environment);
    // The preference to accept routes adds them.
    assert_eq!(allowed(&accepting, 2).len(), 4);
    assert_eq!(allowed(&accepting, 3), ["100.64.0.3/32", "10.0.0.0/8"]);
    assert_eq!(allowed(&accepting, 4), ["100.64.0.4/32"]);
    assert_eq!(accepting.host.addresses, ["100.64.0.1/32".parse().unwrap()]);
    assert!(accepting.problems.iter().any(|problem| problem.contains("127.0.0.1/8")));
}

#[test]
fn first_peers_update_is_complete_even_without_peers() {
    let none = Settings::default();
    assert_eq!(none.peers_update(Some(&none)), None);
    let all = ToDataPlane::Peers { complete: true, changed: vec![], removed: vec![] };
    assert_eq!(none.peers_update(None), Some(all));
    let peer = |key| Peer { key: NodePublic([key; 32]), allowed_ips: Box::default(), keepalive: 0 };
    let with = |peers| Settings { peers, ..Settings::default() };
    let (old, new) = (with(vec![peer(1), peer(2)]), with(vec![peer(2), peer(3)]));
    let change = ToDataPlane::Peers {
        complete: false,
        changed: vec![peer(3)],
        removed: vec![NodePublic([1; 32])],
    };
    assert_eq!(new.peers_update(Some(&old)), Some(change));
}

#[test]
fn tailnet_lock_accepts_only_peers_with_signed_keys() {
    let chains: Value = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tailnet/tests/tka/vectors.json"
    )))
    .unwrap();
    let bytes = |text: &Value| base16ct::lower::decode_vec(text.as_str().unwrap()).unwrap();
    let authority = Authority::bootstrap(&bytes(&chains[0]["Checkpoint"])).unwrap();
    let signature = |name: &str| {
        let mut all = chains[0]["Signatures"].as_array().unwrap().iter();
        let signature = all.find(|signature| signature["Name"] == name).unwrap();
        json!({"KeySignature": Base64::encode_string(&bytes(&signature["Text"]))})
    };
    let unsigned = json!({"UnsignedPeerAPIOnly": true});
    // The rejection does not depend on the coordinator.
    let map = map(json!({
        "Node": node(1, json!({})),
        "Peers": [
            node(50, signature("direct")), node(51, signature("by a key that nobody trusts")),
            node(52, signature("by a credential")), node(53, json!({"KeySignature": "?"})),
            node(54, unsigned),
        ],
        "TKAInfo": {"Disabled": true},
    }));
    let tka = TkaStatus::On { authority: &authority, own_key: "tlpub:07" };
    let environment = Environment { now: NOW, has_interface: true, tka, ..Environment::default() };
    let settings = settings(&map, &Prefs::new(), &environment);
    let keys: Vec<u8> = settings.peers.iter().map(|peer| peer.key.0[0]).collect();
    assert_eq!(keys, [50, 52]);
    let told = &settings.problems;
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("n51.tail.net") && told[1].ends_with("it is not signed"), "{told:?}");
    assert!(told[2].contains("tailscale lock sign nodekey:0101"), "{told:?}");
    assert!(told[2].contains(" tlpub:07`"), "{told:?}");
}

#[test]
fn all_peers_are_rejected_if_the_stored_keys_are_damaged() {
    let map = map(json!({"Node": node(1, json!({})), "Peers": [node(2, json!({}))]}));
    let tka = TkaStatus::Damaged;
    let environment = Environment { now: NOW, has_interface: true, tka, ..Environment::default() };
    assert!(settings(&map, &Prefs::new(), &environment).peers.is_empty());
}

#[test]
fn remote_coordinator_cannot_name_a_local_resolver() {
    let map = map(json!({"Node": node(1, json!({})), "DNSConfig": {
        "Proxied": true,
        "Resolvers": [{"Addr": "127.0.0.1"}, {"Addr": "9.9.9.9"}],
        "Routes": {"corp.": [{"Addr": "[::ffff:169.254.169.254]:53"}]},
    }}));
    let here = Scope::of_control(&"http://127.0.0.1".parse().unwrap(), "");
    let of = |scope| {
        // The previous resolver of the machine was chosen by its user.
        let servers = ["127.0.0.53".parse().unwrap()];
        let environment = Environment {
            now: NOW,
            servers: &servers,
            has_interface: true,
            scope,
            ..Environment::default()
        };
        settings(&map, &Prefs::new(), &environment)
    };
    let far = of(Scope::default());
    let refused = ["127.0.0.1:53", "[::ffff:169.254.169.254]:53"];
    assert_eq!(far.problems, refused.map(|at| format!("DNS server {at}: {NOT_ADMITTED}")));
    assert_eq!(far.names.system, [magic_dns::Resolver::Plain("127.0.0.53:53".parse().unwrap())]);
    assert_eq!(of(here).problems.len(), 1, "a link is not this machine");
}

#[test]
fn addresses_in_configured_ranges_are_accepted() {
    let addressed = |address: &str| json!({"Addresses": [address], "AllowedIPs": [address]});
    let map = map(json!({
        "Node": node(1, addressed("203.0.113.1/32")),
        "Peers": [node(2, addressed("203.0.113.2/32"))],
    }));
    let range = ["203.0.113.0/24".parse().unwrap()];
    let of = |ranges, has_interface| {
        let environment = Environment { now: NOW, ranges, has_interface, ..Environment::default() };
        settings(&map, &Prefs::new(), &environment)
    };
    let named = of(&range[..], true);
    assert_eq!(named.host.addresses, ["203.0.113.1/32".parse().unwrap()]);
    assert_eq!(allowed(&named, 2), ["203.0.113.2/32"]);
    assert!(of(&[], true).host.addresses.is_empty());
    // Without an interface the machine does not get the address.
    assert_eq!(of(&[], false).host.addresses, named.host.addresses);
}
