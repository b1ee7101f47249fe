//! A coordinator that adds nodes to a locked network.

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use mesh::{
    network_map::NetworkMap,
    node_settings::{Environment, TkaStatus, settings},
    prefs::Prefs,
};
use serde_json::{Value, json};
use tailnet::{
    map_messages::MapResponse,
    tka::{NewKey, disablement_hash, first_checkpoint, sign},
};

use super::*;

const NODES: u16 = 1000;
const NOW: Duration = Duration::from_secs(1_800_000_000);

fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

fn key(number: u16) -> NodePublic {
    let mut key = [7; 32];
    key[..2].copy_from_slice(&number.to_be_bytes());
    NodePublic(key)
}

fn read(response: &Value) -> MapResponse {
    MapResponse::read(response.to_string().as_bytes()).unwrap()
}

fn node(number: u16, signature: &[u8]) -> Value {
    let [high, low] = number.to_be_bytes();
    let address = format!("100.64.{high}.{low}/32");
    json!({
        "ID": u32::from(number) + 1, "StableID": number.to_string(),
        "Name": format!("n{number}.tail.net."),
        "Key": key(number), "Addresses": [address], "AllowedIPs": [address],
        "KeySignature": Base64::encode_string(signature),
    })
}

/// Attacks of a coordinator by name. The numbers of its nodes follow those of the network.
fn inserted() -> Vec<(&'static str, Value)> {
    let own = signer(100);
    let first = sign(&signer(1), &key(2000), &own.id());
    let second = own.renew_signature(&key(2001), &first).unwrap();
    let replayed = sign(&signer(1), &key(1), &[]);
    let mut exempt = node(2007, &[]);
    exempt["UnsignedPeerAPIOnly"] = json!(true);
    vec![
        ("a key that was rotated out", node(2000, &first)),
        ("no signature", node(2002, &[])),
        ("a stranger's signature", node(2003, &sign(&signer(9), &key(2003), &[]))),
        ("another node's signature", node(2004, &replayed)),
        ("a key that is trusted no more", node(2005, &sign(&signer(3), &key(2005), &[]))),
        ("another node's rotation", node(2006, &second)),
        ("one that it exempts", exempt),
        ("what is no signature", node(2008, &[0xa0])),
    ]
}

/// Returns an authority that trusts the keys 1 and 2, and previously trusted 3.
fn authority() -> Authority {
    let keys = [1, 2, 3].map(|number| NewKey::new(signer(number).id(), 1));
    let disabler = disablement_hash(b"secret").unwrap();
    let first = first_checkpoint(&keys, &[disabler], (1, 2), &signer(1)).unwrap();
    let mut authority = Authority::bootstrap(&first).unwrap();
    let out = authority.edit_keys(&signer(1), &[], &[signer(3).id()]).unwrap();
    authority.inform(&out).unwrap();
    authority
}

#[test]
fn inserted_node_is_rejected_by_all_of_1000_nodes() {
    let authority = authority();
    let tka = TkaStatus::On { authority: &authority, own_key: "tlpub:00" };
    let around = Environment { now: NOW, has_interface: true, tka, ..Environment::default() };
    // A node that renewed its key is a legitimate member.
    let renewed =
        signer(100).renew_signature(&key(2001), &sign(&signer(1), &key(2000), &signer(100).id()));
    let mut signed: Vec<Value> = (0..NODES)
        .map(|number| node(number, &sign(&signer(1 + (number % 2) as u8), &key(number), &[])))
        .collect();
    signed.push(node(2001, &renewed.unwrap()));
    let inserted = inserted();
    let (mut accepted, mut decisions, mut peers) = (0, 0, 0);
    for number in 0..NODES {
        // Each node gets a part of the network, and every node of the coordinator, in the first map
        // and again as a change. The rule is the same for all.
        let shares = |at: usize| at != usize::from(number) && at % 50 == usize::from(number) % 50;
        let mut told: Vec<&Value> =
            signed.iter().enumerate().filter(|(at, _)| shares(*at)).map(|(_, node)| node).collect();
        told.push(&signed[usize::from(NODES)]);
        told.sort_by_key(|node| node["ID"].as_u64());
        told.dedup();
        let rightly = told.len();
        let all: Vec<&Value> =
            told.into_iter().chain(inserted.iter().map(|(_, node)| node)).collect();
        let mut map = NetworkMap::default();
        // Its statements about tailnet lock do not matter.
        let said = match number % 3 {
            0 => json!(null),
            1 => json!({ "Disabled": true }),
            _ => json!({ "Head": "A".repeat(52) }),
        };
        let first = json!({ "Node": &signed[usize::from(number)], "Peers": all, "TKAInfo": said });
        map.apply_first(read(&first), NOW);
        let change =
            json!({ "PeersChanged": inserted.iter().map(|(_, node)| node).collect::<Vec<_>>() });
        for more in [None, Some(change)] {
            if let Some(more) = more {
                map.apply(read(&more), NOW);
            }
            let made = settings(&map, &Prefs::new(), &around);
            for (_, node) in &inserted {
                let key: NodePublic = node["Key"].as_str().unwrap().parse().unwrap();
                decisions += 1;
                accepted += u32::from(made.peers.iter().any(|peer| peer.key == key));
            }
            assert_eq!(made.peers.len(), rightly, "those that are signed are peers");
            peers += made.peers.len();
        }
    }
    println!("{accepted} of {decisions} accepted, of {NODES} nodes, beside {peers} peers");
    assert_eq!((accepted, decisions), (0, 2 * u32::from(NODES) * inserted.len() as u32));
}

/// Shows that the test above can fail: without tailnet lock all of them are peers.
#[test]
fn without_tailnet_lock_inserted_nodes_are_accepted() {
    let mut map = NetworkMap::default();
    let inserted = inserted();
    let nodes: Vec<&Value> = inserted.iter().map(|(_, node)| node).collect();
    let first = json!({ "Node": node(1, &[]), "Peers": nodes });
    map.apply_first(read(&first), NOW);
    let tka = TkaStatus::Unknown;
    let around = Environment { now: NOW, has_interface: true, tka, ..Environment::default() };
    assert_eq!(settings(&map, &Prefs::new(), &around).peers.len(), inserted.len());
}
