use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn key(byte: u8) -> NodePublic {
    NodePublic([byte; 32])
}

fn node(id: u8) -> Value {
    json!({"ID": id, "Name": format!("n{id}.net."), "Key": key(id).to_string(), "Addresses": [format!("100.64.0.{id}/32")]})
}

fn response(text: Value) -> MapResponse {
    MapResponse::read(text.to_string().as_bytes()).unwrap()
}

fn apply(map: &mut NetworkMap, text: Value) -> Changes {
    let changes = map.apply(response(text), NOW);
    assert_eq!(map.cost, map.peers().map(cost).sum::<usize>(), "what it counts is there");
    changes
}

fn ids(map: &NetworkMap) -> Vec<i64> {
    map.peers().map(|peer| peer.id).collect()
}

fn first() -> NetworkMap {
    let mut map = NetworkMap::default();
    apply(&mut map, json!({"Node": node(1), "Peers": [node(2), node(3)]}));
    map
}

#[test]
fn complete_list_replaces_all_peers_and_an_empty_one_removes_none() {
    let mut map = first();
    assert_eq!(ids(&map), [2, 3]);
    apply(&mut map, json!({"Peers": [], "PeersRemoved": null}));
    apply(&mut map, json!({"Peers": null}));
    assert_eq!(ids(&map), [2, 3]);
    apply(&mut map, json!({"Peers": [node(4)], "PeersRemoved": [4]}));
    assert_eq!(ids(&map), [4], "nothing else of peers counts beside a list of all");
    assert_eq!((map.peer(&key(4)).is_some(), map.peer(&key(2))), (true, None));
}

#[test]
fn unreadable_peer_is_reported_and_the_others_are_stored() {
    let mut map = first();
    let bad = json!({"ID": 9, "Name": "bad.net.", "Key": "nodekey:zz"});
    let changes = apply(&mut map, json!({"Peers": [node(2), bad, node(5)]}));
    assert_eq!(ids(&map), [2, 5]);
    let [told] = &changes.bad[..] else { panic!("{changes:?}") };
    assert!(told.to_string().starts_with("peer \"bad.net.\": "), "{told}");
    let changes = apply(&mut map, json!({"Peers": [bad]}));
    assert_eq!((ids(&map), changes.bad.len()), (vec![2, 5], 1), "and removes nobody");
}

#[test]
fn peer_without_number_key_or_address_is_ignored_and_reported() {
    let mut map = first();
    let without = |field: &str| {
        let mut peer = node(7);
        peer.as_object_mut().unwrap().remove(field);
        peer
    };
    let zero = json!({"NodeID": 3, "Key": NodePublic::default()});
    for (field, why) in
        [("ID", "it has no number"), ("Key", "it has no key"), ("Addresses", "it has no address")]
    {
        let changes = apply(&mut map, json!({"PeersChanged": [without(field)]}));
        assert_eq!((ids(&map), &*changes.bad[0].why), (vec![2, 3], why));
    }
    let changes = apply(&mut map, json!({"PeersChanged": [{}, [], node(4)]}));
    assert_eq!((ids(&map), changes.bad.len()), (vec![2, 3, 4], 2));
    let changes = apply(&mut map, json!({"PeersChangedPatch": [zero]}));
    assert_eq!((map.peer(&key(3)).is_some(), changes.bad.len()), (true, 1));
    let mut kept = map.clone();
    kept.peers.insert(0, Box::default());
    assert_eq!(ids(&kept.restored()), [2, 3, 4], "nor does an older version's map have one");
}

#[test]
fn deltas_are_applied_in_order() {
    let mut map = first();
    let changed = json!({
        "PeersRemoved": [2, 77], "PeersChanged": [node(2), node(4)],
        "OnlineChange": {"4": true, "78": true}, "PeerSeenChange": {"3": true},
        "PeersChangedPatch": [{"NodeID": 4, "DERPRegion": 7}, {"NodeID": 79, "DERPRegion": 7}],
    });
    apply(&mut map, changed);
    assert_eq!(ids(&map), [2, 3, 4]);
    let four = map.peer(&key(4)).unwrap();
    assert_eq!((four.online, four.home()), (Some(true), Some(7)));
    assert_eq!(map.peer(&key(3)).unwrap().last_seen.as_deref(), Some("2027-01-15T08:00:00Z"));
}

#[test]
fn patch_changes_only_its_fields() {
    let mut map = first();
    let disco = format!("discokey:{}", "0b".repeat(32));
    let patch = json!({"NodeID": 2, "DiscoKey": disco, "Endpoints": ["192.0.2.1:7"], "Key": key(9).to_string()});
    let changes = apply(&mut map, json!({"PeersChangedPatch": [patch]}));
    assert!(changes.settings);
    let peer = map.peer(&key(9)).unwrap();
    assert_eq!((peer.id, &*peer.name, peer.disco_key.to_string()), (2, "n2.net.", disco));
    assert_eq!(map.peer(&key(2)), None, "its previous key belongs to no node");
    let same =
        json!({"PeersChangedPatch": [{"NodeID": 2, "DERPRegion": 0, "Cap": 0, "Online": true}]});
    let changes = apply(&mut map, same);
    assert_eq!((changes.settings, changes.shown), (false, true), "who is connected is only shown");
}

#[test]
fn named_rules_are_replaced_and_absent_ones_unchanged() {
    let mut map = first();
    let rule = |port: u16| json!({"SrcIPs": ["*"], "DstPorts": [{"IP": "*", "Ports": {"First": port, "Last": port}}]});
    let ports = |map: &NetworkMap| -> Option<Vec<u16>> {
        Some(map.rules()?.map(|rule| rule.destinations[0].ports.first).collect())
    };
    assert_eq!(ports(&map), None);
    apply(
        &mut map,
        json!({"PacketFilter": [rule(1)], "PacketFilters": {"z": [rule(3)], "a": [rule(2)]}}),
    );
    assert_eq!(ports(&map), Some(vec![2, 1, 3]), "a, base, z");
    apply(&mut map, json!({"PacketFilters": {"a": null, "z": []}}));
    assert_eq!(ports(&map), Some(vec![1]));
    apply(&mut map, json!({"PacketFilter": []}));
    assert_eq!(ports(&map), Some(vec![]));
    apply(&mut map, json!({"PacketFilters": {"*": null, "b": [rule(4)]}}));
    assert_eq!(ports(&map), Some(vec![4]));
}

#[test]
fn relays_stay_if_a_map_does_not_contain_them() {
    let mut map = first();
    let region = |id: u16| json!({"RegionID": id, "RegionCode": format!("r{id}"), "Nodes": []});
    let all = json!({"DERPMap": {"Regions": {"1": region(1), "2": region(2)}, "HomeParams": {"RegionScore": {"1": 0.5}}}});
    assert!(apply(&mut map, all).relays);
    assert!(!apply(&mut map, json!({"DERPMap": {"Regions": null}})).relays);
    assert!(!apply(&mut map, json!({})).relays);
    assert!(apply(&mut map, json!({"DERPMap": {"Regions": {"1": null, "2": region(2)}}})).relays);
    let regions: Vec<u16> = map.derp_map().regions.iter().flatten().map(|(id, _)| *id).collect();
    assert_eq!(regions, [2]);
    assert!(map.derp_map().home_params.is_some());
}

#[test]
fn keys_expire_by_the_coordinators_clock_if_ours_is_wrong() {
    let mut map = first();
    let mut expiring = node(2);
    expiring["KeyExpiry"] = json!("2027-01-15T09:00:00Z");
    apply(&mut map, json!({"PeersChanged": [expiring]}));
    assert_eq!(map.next_expiry(NOW), Some(Duration::from_secs(3600)));
    apply(&mut map, json!({"KeepAlive": true, "ControlTime": "2027-01-15T08:30:00Z"}));
    assert_eq!(map.next_expiry(NOW), Some(Duration::from_secs(1800)));
    apply(&mut map, json!({"ControlTime": "2027-01-15T08:00:30Z"}));
    assert_eq!(map.time(NOW), NOW, "less than a minute is nothing");
}

#[test]
fn named_messages_are_replaced_and_removed() {
    let mut map = first();
    let said = |map: &NetworkMap| map.problems().collect::<Vec<_>>();
    apply(
        &mut map,
        json!({"Health": ["old"], "DisplayMessages": {"a": {"Title": "T", "Text": "x"}}}),
    );
    assert_eq!(said(&map), ["old", "T: x"]);
    apply(&mut map, json!({"DisplayMessages": {"a": null}}));
    assert_eq!(said(&map), ["old"]);
    apply(&mut map, json!({"Health": [], "DisplayMessages": {"b": {"Title": "B"}}}));
    apply(&mut map, json!({"DisplayMessages": {"*": null}}));
    assert!(said(&map).is_empty());
}

#[test]
fn first_map_of_a_stream_resets_all_but_peers_and_relays() {
    let mut map = first();
    let relay = json!({"Regions": {"1": {"RegionID": 1, "Nodes": []}}});
    apply(
        &mut map,
        json!({
            "Domain": "net", "DNSConfig": {"Proxied": true}, "Health": ["ill"], "DERPMap": relay,
            "PacketFilter": [{"SrcIPs": ["*"]}], "PacketFilters": {"a": []},
            "UserProfiles": [{"ID": 7}], "TKAInfo": {"Head": "x"},
            "DisplayMessages": {"a": {"Title": "t"}},
        }),
    );
    let response = response(json!({"Node": node(1), "Peers": []}));
    let changes = map.apply_first(response, NOW);
    assert!(changes.settings && changes.shown && !changes.relays);
    assert_eq!((ids(&map), map.derp_map().regions.as_ref().unwrap().len()), (vec![2, 3], 1));
    assert!(!map.dns().proxied && map.rules().is_none() && map.tka().is_none());
    assert_eq!((map.domain(), map.users().len(), map.problems().count()), ("", 0, 0));
    assert_eq!(map.node().unwrap().id, 1);
}

#[test]
fn map_is_restored_from_its_cache() {
    let mut map = first();
    apply(
        &mut map,
        json!({"Domain": "net", "PacketFilter": [{"SrcIPs": ["*"]}], "OnlineChange": {"2": true}}),
    );
    let text = serde_json::to_string(&map).unwrap();
    let back = serde_json::from_str::<NetworkMap>(&text).unwrap().restored();
    assert_eq!((ids(&back), back.domain(), back.suffix()), (ids(&map), "net", "net"));
    assert_eq!(back.peer(&key(2)).unwrap().online, None, "nobody knows who is connected now");
    assert_eq!(back.rules().map(Iterator::count), Some(1));
}

proptest! {
    #[test]
    fn keys_and_numbers_of_peers_stay_unique(
        steps in proptest::collection::vec((0_u8..5, 0_u8..6, 0_u8..6), 0..40),
    ) {
        let mut map = NetworkMap::default();
        for (step, id, other) in steps {
            apply(&mut map, match step {
                0 => json!({"Peers": [node(id), node(other)]}),
                1 => json!({"PeersRemoved": [id]}),
                2 => json!({"PeersChanged": [node(id)]}),
                3 => json!({"PeersChangedPatch": [{"NodeID": id, "Key": key(other + 10).to_string()}]}),
                _ => json!({"OnlineChange": {id.to_string(): true}}),
            });
            let keys: BTreeSet<NodePublic> = map.peers().map(|peer| peer.key).collect();
            for key in keys {
                prop_assert_eq!(map.peer(&key).map(|peer| peer.key), Some(key));
            }
            prop_assert!(map.by_key.len() <= map.peers.len());
        }
    }
}

#[test]
fn peers_from_deltas_are_limited_and_existing_ones_stay() {
    let mut map = first();
    let mut bad = Vec::new();
    for number in 0..2 * MAX_NAMES {
        let name = number.to_string();
        let changes = apply(
            &mut map,
            json!({"DisplayMessages": {&name: {"Title": name}}, "PacketFilters": {&name: []}}),
        );
        bad = changes.bad;
    }
    assert_eq!((map.messages.len(), map.filters.len()), (MAX_NAMES, MAX_NAMES));
    assert_eq!(bad.len(), 2, "{bad:?}");
    let changes = apply(&mut map, json!({"DisplayMessages": {"7": {"Title": "new"}}}));
    assert!(changes.bad.is_empty() && map.problems().any(|problem| problem == "new"));
}

#[test]
fn existing_peers_stay_if_a_list_is_too_long() {
    let mut map = first();
    let many = (0..MAX_RECORDS).map(|number| {
        let key = format!("nodekey:{:064x}", number + 1000);
        json!({"ID": number + 1000, "Key": key, "Addresses": ["100.64.0.9/32"]})
    });
    let peers: Vec<Value> = many.chain([node(2), node(3)]).collect();
    let changes = apply(&mut map, json!({ "Peers": peers }));
    assert_eq!((map.peers().len(), changes.bad.len()), (MAX_RECORDS, 1));
    assert!(map.peer(&key(2)).is_some() && map.peer(&key(3)).is_some());
}

/// Returns a peer with this number of empty tags. Each takes 24 bytes of memory for 3 bytes of
/// text.
fn heavy(id: u8, tags: usize) -> Value {
    let mut node = node(id);
    node["Tags"] = json!(vec![""; tags]);
    node
}

#[test]
fn peers_beyond_the_memory_limit_are_ignored_and_existing_ones_unchanged() {
    const TAGS: usize = 600_000;
    let each = TAGS * size_of::<String>();
    let room = u8::try_from(MAX_MEMORY_OF_PEERS / each).unwrap();
    let mut map = NetworkMap::default();
    let peers: Vec<Value> = (1..=room + 1).map(|id| heavy(id, TAGS)).collect();
    let changes = apply(&mut map, json!({ "Node": node(100), "Peers": peers }));
    assert_eq!((map.peers().len(), changes.bad.len()), (usize::from(room), 1));
    assert!(map.cost <= MAX_MEMORY_OF_PEERS && changes.settings);

    // An existing peer may grow within the limits.
    let patch = json!([{ "NodeID": 1, "Endpoints": ["192.0.2.1:7"] }]);
    let changes = apply(&mut map, json!({ "PeersChangedPatch": patch }));
    assert_eq!((map.peer(&key(1)).unwrap().endpoints.len(), changes.bad), (1, vec![]));
    let grown: Vec<Value> = (1..=room).map(|id| heavy(id, TAGS + 50_000)).collect();
    let changes = apply(&mut map, json!({ "PeersChanged": grown }));
    assert_eq!((map.peers().len(), changes.bad.len()), (usize::from(room), 1));
    assert!(map.peers().any(|peer| peer.tags.len() == TAGS), "it stays as it was");

    // The complete list fits: some peers are removed while others grow.
    let half: Vec<Value> = (1..=room / 2).map(|id| heavy(id, TAGS + 50_000)).collect();
    let changes = apply(&mut map, json!({ "Peers": half }));
    assert_eq!((map.peers().len(), changes.bad), (usize::from(room / 2), vec![]));
    assert!(map.peers().all(|peer| peer.tags.len() > TAGS));
}
