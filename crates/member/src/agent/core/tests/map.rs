use mesh::local_json::{State, Timestamp};

use super::*;

#[tokio::test]
async fn new_stream_drops_filter_and_names_of_the_previous_one() {
    let mut rig = Rig::joined("new-stream").await;
    let mut map = map_of(&[2]);
    map["DNSConfig"] = json!({"Proxied": true, "Domains": ["old.example"]});
    rig.stream(map).await;
    let filter = |messages: &[ToDataPlane]| {
        messages.iter().rev().find_map(|message| match message {
            ToDataPlane::Filter(policy) => Some(policy.clone()),
            _ => None,
        })
    };
    let accepting = filter(&rig.plane_messages()).unwrap();
    rig.map(json!({"Domain": "other.example"})).await;
    assert_eq!(filter(&rig.plane_messages()), None, "an omitted field is unchanged");
    rig.stream(json!({"Node": node(1), "Peers": []})).await;
    let messages = rig.plane_messages();
    assert_ne!(filter(&messages), None);
    assert_ne!(filter(&messages), Some(accepting));
    assert!(
        !messages.iter().any(|message| matches!(message, ToDataPlane::Peers { .. })),
        "{messages:?}"
    );
    let status = rig.status().await;
    assert_eq!((status.peer.len(), status.current_tailnet.unwrap().magic_dns_enabled), (1, false));
}

#[tokio::test]
async fn peers_without_key_or_with_own_key_are_not_in_the_status() {
    let mut rig = Rig::joined("nonsense").await;
    rig.stream(map_of(&[2])).await;
    let with_key = |id: u8, key: NodePublic| {
        let mut peer = node(id);
        peer["Key"] = json!(key);
        peer
    };
    let own = rig.agent.node.key();
    let nonsense = [with_key(8, NodePublic::default()), with_key(9, own), json!({})];
    rig.map(json!({ "PeersChanged": nonsense })).await;
    let peers: Vec<i64> = rig.status().await.peer.values().map(|peer| peer.node_id).collect();
    assert_eq!(peers, [2]);
}

#[tokio::test]
async fn flood_of_maps_updates_settings_at_intervals_and_for_the_last_map() {
    let mut rig = Rig::joined("flood").await;
    let all: Vec<u8> = (2..=201).collect();
    rig.stream(map_of(&all)).await;
    rig.plane_messages();
    let took = Duration::from_millis(1);
    rig.agent.handle_done(rig.agent.clock.now + took);
    for id in &all[..100] {
        rig.map(json!({ "PeersRemoved": [id] })).await;
    }
    let of_peers = |messages: Vec<ToDataPlane>| {
        messages.into_iter().filter(|one| matches!(one, ToDataPlane::Peers { .. })).count()
    };
    assert_eq!(of_peers(rig.plane_messages()), 0, "settings were made just before");
    rig.pass(crate::agent::throttle::REST_FACTOR * took).await;
    assert_eq!(of_peers(rig.plane_messages()), 0);
    rig.pass(took).await;
    assert_eq!(of_peers(rig.plane_messages()), 1);
    assert_eq!(rig.agent.applied.settings().peers.len(), 100);
}

#[tokio::test]
async fn expired_key_needs_login_until_the_map_extends_it() {
    let mut rig = Rig::joined("expiry").await;
    let wall = rig.agent.clock.wall.as_secs();
    let expiring = |after: u64| {
        let mut node = node(1);
        node["KeyExpiry"] = json!(Timestamp::from_unix(wall + after).0);
        node
    };
    let mut map = map_of(&[2]);
    map["Node"] = expiring(60);
    rig.stream(map).await;
    rig.plane_messages();
    rig.pass(Duration::from_secs(50)).await;
    assert_eq!(rig.status().await.backend_state, State::Running);
    rig.pass(Duration::from_secs(20)).await;
    assert_eq!(rig.status().await.backend_state, State::NeedsLogin);
    assert_eq!(rig.health("has expired").await.len(), 1);
    assert_eq!(rig.agent.applied.settings().peers.len(), 1, "its peers remain");
    rig.map(json!({ "Node": expiring(600) })).await;
    rig.pass(Duration::from_secs(20)).await;
    assert_eq!(rig.status().await.backend_state, State::Running);
    assert_eq!(rig.health("has expired").await, [""; 0]);
}

#[tokio::test]
async fn saved_map_of_another_node_key_is_not_used() {
    let mut rig = Rig::joined("other-key").await;
    rig.stream(map_of(&[2])).await;
    let rig = rig.restarted().await;
    assert_eq!(peers(&rig.plane_messages()), [key(2)]);
    let file = rig.folder.0.join("map.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&KEY.to_string(), &key(9).to_string())).unwrap();
    assert_eq!(peers(&rig.restarted().await.plane_messages()), []);
}
