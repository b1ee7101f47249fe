//! A coordinator's map, from its text to the settings of this node.

use std::time::Duration;

use mesh::{
    network_map::NetworkMap,
    node_settings::{Environment, settings},
    prefs::Prefs,
};
use packet::filter::{Policy, Rules};
use tailnet::map_messages::MapResponse;

use super::take;

/// A stream of responses, one per line. The map must stay consistent, load from its cache, and give
/// consistent settings.
pub fn network_map(data: &[u8]) {
    let mut rest = data;
    let [flags] = take(&mut rest);
    let prefs = preferences(flags);
    let (now, lan) = (Duration::from_secs(1_800_000_000), ["203.0.113.7/24", "2001:db8::7/64"]);
    let connected = lan.map(|net| net.parse().expect("a network"));
    let environment =
        Environment { now, connected: &connected, has_interface: true, ..Environment::default() };
    let mut map = NetworkMap::default();
    for text in rest.split(|byte| *byte == b'\n').take(16) {
        let Ok(response) = MapResponse::read(text) else { continue };
        let names_no_peer = response.peers.is_empty()
            && response.peers_removed.is_empty()
            && response.peers_changed.is_empty()
            && response.peers_changed_patch.is_empty();
        let before = map.peers().len();
        map.apply(response, now);
        assert!(!names_no_peer || map.peers().len() == before, "an absent list removed a peer");
        for peer in map.peers() {
            assert_eq!(
                map.peer(&peer.key).map(|peer| peer.id),
                Some(peer.id),
                "two peers have one key"
            );
        }
        check(&map, &prefs, &environment);
        let text = |map: &NetworkMap| serde_json::to_string(map).expect("keys are texts");
        let read = |text: &str| serde_json::from_str::<NetworkMap>(text).expect("our own text");
        let cached = read(&text(&map)).restored();
        assert_eq!(read(&text(&cached)).restored(), cached);
        assert_eq!(cached.peers().len(), map.peers().len());
    }
}

fn preferences(flags: u8) -> Prefs {
    let has = |flag: u8| flags & flag != 0;
    let offered = ["0.0.0.0/0", "::/0", "10.7.0.0/16"].map(|net| net.parse().expect("a network"));
    Prefs {
        route_all: has(1),
        shields_up: has(2),
        exit_node_id: if has(4) { "n2".into() } else { String::new() },
        advertise_routes: if has(8) { offered.to_vec() } else { Vec::new() },
        corp_dns: !has(16),
        ..Prefs::new()
    }
}

fn check(map: &NetworkMap, prefs: &Prefs, environment: &Environment<'_>) {
    let settings = settings(map, prefs, environment);
    assert_eq!(settings.peers.len(), settings.paths.len());
    let allowed = settings.peers.iter().flat_map(|peer| &peer.allowed_ips);
    for net in allowed {
        assert_eq!(*net, net.trunc(), "host bits are off");
        assert!(net.prefix_len() != 0 || settings.host.exit, "no exit node was selected");
    }
    let policy = Policy::from(&settings.filter);
    assert!(map.node().is_none() || policy.shields_up == prefs.shields_up);
    assert!(!policy.shields_up || policy.rules.is_empty());
    let ports = policy.rules.iter().flat_map(|rule| &rule.destinations).map(|to| &to.ports);
    assert!(ports.into_iter().all(|ports| !ports.is_empty()));
    Rules::new(&policy);
}
