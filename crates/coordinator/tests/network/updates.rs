//! Frames of clients: the full map first, then only the changes.

use std::time::Duration;

use coordinator::{NewKey, PollResult, Session, Settings, Time, ZERO_TIME};
use serde_json::{Value, json};
use tailnet::keys::NodePublic;

use crate::{
    policy::key_of,
    simulation::{Machine, World},
};

#[test]
fn the_first_frame_is_a_full_map() {
    let mut world = World::new();
    let key = world.reusable();
    let first = world.join(1, &key);
    let second = world.join(2, &key);
    let fields = &second.frames[0];
    for field in [
        "Node",
        "Peers",
        "UserProfiles",
        "DERPMap",
        "DNSConfig",
        "Domain",
        "PacketFilters",
        "SSHPolicy",
    ] {
        assert!(fields.iter().any(|own| own == field), "{field}: {fields:?}");
    }
    let peer = second.peer(&first);
    assert_eq!(peer["Name"], "host-1.tailnet.internal.");
    assert_eq!(peer["AllowedIPs"], json!(["100.64.0.1/32", "fd7a:115c:a1e0::1/128"]));
    assert_eq!((&peer["Online"], &peer["Cap"]), (&json!(true), &json!(131)));
    assert!(peer.get("Machine").is_none() && second.own["Machine"].is_string());
    assert_eq!(second.own["MachineAuthorized"], true);
}

#[test]
fn nodes_that_join_together_receive_all_others_in_one_frame() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machines: Vec<Machine> = (1..=150).map(|number| world.join(number, &key)).collect();
    for (index, machine) in machines.iter_mut().enumerate() {
        assert_eq!(machine.peers.len(), index);
        let frames = machine.frames.len();
        while world.poll(machine) {}
        assert_eq!(
            (machine.peers.len(), machine.frames.len()),
            (149, frames + usize::from(index < 149))
        );
        assert!(!machine.peers.contains_key(&machine.id.0));
    }
}

#[test]
fn a_frame_with_the_node_and_a_peer_has_one_list_of_owners() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let peer = world.join(2, &key);
    world.poll(&mut machine);
    for (id, name) in [(machine.id, "one"), (peer.id, "other")] {
        world.state.rename_node(id, name, world.now).unwrap();
    }
    world.commit();
    assert!(world.poll(&mut machine));
    let fields = machine.frames.last().unwrap();
    for field in ["Node", "PeersChanged", "UserProfiles"] {
        assert!(fields.iter().any(|own| own == field), "{field}: {fields:?}");
    }
}

#[test]
fn the_first_node_of_an_owner_makes_stock_clients_rebuild_their_map() {
    let mut world = World::new();
    let (own, user) = (world.reusable(), world.add_user("bob"));
    let others = key_of(&mut world, user);
    let tags = vec!["tag:a".to_owned()];
    let tagged = world.auth_key(NewKey { tags, reusable: true, ..NewKey::default() });
    let mut machine = world.join(1, &own);
    let mut late = world.join(2, &own);
    world.poll(&mut machine);
    for (number, key, is_new) in [
        (3, &own, false),
        (4, &others, true),
        (5, &others, false),
        (6, &tagged, true),
        (7, &tagged, false),
    ] {
        world.join(number, key);
        for received in [&mut machine, &mut late] {
            while world.poll(received) {}
            let fields = received.frames.last().unwrap();
            let has = |field: &str| fields.iter().any(|own| own == field);
            assert!(has("PeersChanged") && has("UserProfiles"), "{number}: {fields:?}");
            assert_eq!(has("CollectServices"), is_new, "{number}: {fields:?}");
        }
    }
}

#[test]
fn endpoints_home_relay_and_disco_key_are_patches_other_fields_whole_nodes() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    world.poll(&mut machine);
    world.send_update(&machine, json!({ "Endpoints": ["192.0.2.9:1"] }));
    machine.hostinfo["NetInfo"] = json!({ "PreferredDERP": 999 });
    world.send_update(&machine, json!({ "Endpoints": [] }));
    world.poll(&mut peer);
    assert_eq!(peer.frames.last().unwrap(), &["ControlTime", "PeersChangedPatch", "Seq"]);
    let received = peer.peer(&machine);
    assert_eq!(
        (&received["Endpoints"], &received["HomeDERP"]),
        (&json!(["192.0.2.9:1"]), &json!(999))
    );
    world.send_update(&machine, json!({ "Endpoints": ["192.0.2.9:1"] }));
    assert!(!world.poll(&mut peer), "nothing changed");
    machine.hostinfo["OS"] = json!("freebsd");
    world.send_update(&machine, json!({ "Endpoints": [] }));
    world.poll(&mut peer);
    assert!(peer.frames.last().unwrap().contains(&"PeersChanged".to_owned()));
    assert_eq!(peer.peer(&machine)["Hostinfo"]["OS"], "freebsd");
    assert!(!world.poll(&mut machine), "a node does not receive its own update");
}

#[test]
fn changed_relays_are_sent_once_to_running_resumed_and_new_streams() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    world.poll(&mut machine);
    let relays = r#"{"Regions":{"900":{"RegionID":900}}}"#.to_owned();
    world.state.set_relays(relays.clone());
    world.commit();
    assert!(world.poll(&mut machine));
    assert_eq!(machine.frames.last().unwrap(), &["ControlTime", "DERPMap", "Seq"]);
    world.state.set_relays(relays);
    world.commit();
    assert!(!world.poll(&mut machine), "the relays did not change");
    let mut late = world.join(2, &key);
    world.poll(&mut machine);
    assert!(!machine.frames.last().unwrap().contains(&"DERPMap".to_owned()));
    world.poll(&mut late);
    assert!(late.frames.iter().flatten().filter(|field| *field == "DERPMap").count() == 1);
}

#[test]
fn a_restarted_client_without_endpoints_keeps_its_previous_ones_for_a_while() {
    let mut world = World::new();
    let key = world.reusable();
    let machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    world.send_update(&machine, json!({ "Endpoints": [] }));
    world.pass(Duration::from_secs(4));
    world.send_update(&machine, json!({ "Endpoints": ["192.0.2.1:41641"] }));
    world.pass(Duration::from_secs(60));
    assert!(!world.poll(&mut peer));
    world.send_update(&machine, json!({ "Endpoints": [] }));
    world.pass(Duration::from_secs(3));
    world.send_update(&machine, json!({ "Endpoints": [] }));
    world.pass(Duration::from_secs(2));
    assert!(world.poll(&mut peer));
    assert_eq!(peer.peer(&machine)["Endpoints"], json!([]));
}

#[test]
fn a_stream_request_does_not_overwrite_an_update() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    let before = peer.peer(&machine).clone();
    machine.disco = Default::default();
    world.send_update(&machine, json!({ "Stream": true, "OmitPeers": false, "Endpoints": [] }));
    assert!(!world.poll(&mut peer));
    assert_eq!(peer.peer(&machine), &before);
}

#[test]
fn a_node_without_a_disco_key_is_visible_to_no_node() {
    let mut world = World::new();
    let key = world.reusable();
    let mut peer = world.join(2, &key);
    let mut machine = Machine::new(1);
    assert_eq!(world.register(&mut machine, &key), "");
    assert!(!world.poll(&mut peer));
    world.send_update(&machine, json!({}));
    world.poll(&mut peer);
    assert_ne!(peer.peer(&machine), &Value::Null);
}

#[test]
fn streams_with_the_same_updates_share_a_frame() {
    let mut world = World::new();
    let key = world.reusable();
    let machines: Vec<Machine> = (1..=3).map(|number| world.join(number, &key)).collect();
    let mut sessions: Vec<Session> =
        machines.iter().map(|machine| Session::new(machine.id, machine.key)).collect();
    for session in &mut sessions {
        session.poll(&world.state, world.now);
    }
    world.send_update(&machines[0], json!({ "Endpoints": ["192.0.2.200:1"] }));
    let mut frames = sessions.iter_mut().map(|session| session.poll(&world.state, world.now));
    assert!(matches!(frames.next(), Some(PollResult::Nothing)));
    let frames: Vec<_> = frames
        .map(|polled| match polled {
            PollResult::Frame(frame) => (frame.key.clone(), frame.text()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(frames[0].0.is_some() && frames[0] == frames[1]);
}

#[test]
fn a_slow_stream_receives_the_result_of_many_changes_once() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    for round in 0..50 {
        let mut machine = world.join(1 + round, &key);
        world.send_update(&machine, json!({ "Endpoints": [format!("192.0.2.1:{}", 1 + round)] }));
        if round % 2 == 0 {
            world.disconnect(&mut machine);
            world.state.delete_node(machine.id).unwrap();
            world.commit();
        }
    }
    let frames = sleeper.frames.len();
    assert!(world.poll(&mut sleeper) && !world.poll(&mut sleeper));
    assert_eq!((sleeper.frames.len(), sleeper.peers.len()), (frames + 1, 25));
}

#[test]
fn all_clients_have_the_same_peers_after_any_order_of_changes() {
    // A fixed sequence of joins, changes, disconnections and deletions, polled at irregular times.
    let mut world = World::new();
    let key = world.reusable();
    let mut machines: Vec<Machine> = Vec::new();
    let (mut seed, mut joined) = (7u64, 0u8);
    for step in 0..400u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (seed >> 33) as usize;
        match pick % 5 {
            0 if joined < 250 => {
                joined += 1;
                machines.push(world.join(joined, &key));
            }
            1 if !machines.is_empty() => {
                let machine = machines.swap_remove(pick / 5 % machines.len());
                world.state.delete_node(machine.id).unwrap();
                world.commit();
            }
            _ if machines.is_empty() => {}
            2 => {
                let machine = &machines[pick / 5 % machines.len()];
                world.send_update(
                    machine,
                    json!({ "Endpoints": [format!("192.0.2.1:{}", 1 + step)] }),
                );
            }
            3 => {
                let id = machines[pick / 5 % machines.len()].id;
                let name = format!("name-{step}");
                world.state.rename_node(id, &name, world.now).unwrap();
                world.commit();
            }
            _ => {
                let at = pick / 5 % machines.len();
                world.poll(&mut machines[at]);
            }
        }
    }
    for machine in &mut machines {
        while world.poll(machine) {}
    }
    assert!(machines.len() > 5);
    for one in &machines {
        assert!(!one.has_ended);
        assert_eq!(one.peers.len(), machines.len() - 1);
        for other in machines.iter().filter(|other| other.id != one.id) {
            let name = format!("{}.tailnet.internal.", world.name(other));
            let node = world.state.node(other.id).unwrap().node;
            assert_eq!(one.peer(other)["Name"], json!(name));
            assert_eq!(one.peer(other)["Endpoints"], json!(node.endpoints));
        }
    }
}

#[test]
fn extra_dns_records_are_sent_with_a_route_if_no_route_covers_them() {
    let mut settings = Settings::default();
    let [within, apart, split] = ["wiki.tailnet.internal", "printer.test", "db.corp.example"];
    let extra = [(within, "100.64.0.9"), (apart, "10.0.0.9"), (split, "fd00::9")];
    settings.dns.extra = extra.map(|(name, at)| (name.to_owned(), at.parse().unwrap())).to_vec();
    settings.dns.split.insert("corp.example".into(), vec!["10.0.0.1".into()]);
    let mut world = World::with(settings);
    let key = world.reusable();
    let machine = world.join(1, &key);
    let dns = &machine.dns;
    assert_eq!(dns["ExtraRecords"][1], json!({ "Name": apart, "Value": "10.0.0.9" }));
    let routes = json!({ "corp.example": [{ "Addr": "10.0.0.1" }], apart: [] });
    assert_eq!(dns["Routes"], routes);
}

#[test]
fn a_new_key_and_its_expiry_are_sent_as_a_patch() {
    let mut world = World::new();
    let key = world.reusable();
    let (mut watcher, mut other) = (world.join(1, &key), world.join(2, &key));
    while world.poll(&mut watcher) {}
    let at = Time::read("2030-01-31T00:00:00Z");
    world.state.set_expiry(other.id, at, world.now).unwrap();
    world.commit();
    while world.poll(&mut other) {}
    assert_eq!(other.own["KeyExpiry"], "2030-01-31T00:00:00Z");
    let received = |world: &mut World, watcher: &mut Machine| {
        let before = watcher.frames.len();
        while world.poll(watcher) {}
        watcher.frames[before..].concat()
    };
    let patched = ["PeersChangedPatch", "ControlTime", "Seq"].map(str::to_owned);
    let sorted = |mut fields: Vec<String>| {
        fields.sort_unstable();
        fields
    };
    assert_eq!(sorted(received(&mut world, &mut watcher)), sorted(patched.to_vec()));
    assert_eq!(watcher.peer(&other)["KeyExpiry"], "2030-01-31T00:00:00Z");
    other.key = NodePublic([9; 32]);
    assert_eq!(world.register(&mut other, &key), "");
    assert_eq!(sorted(received(&mut world, &mut watcher)), sorted(patched.to_vec()));
    let peer = watcher.peer(&other);
    assert_eq!((&peer["Key"], &peer["KeyExpiry"]), (&json!(other.key), &json!(ZERO_TIME)));
}
