//! Nodes that log out, expire, connect and disconnect.

use std::time::Duration;

use coordinator::NewKey;
use serde_json::{Value, json};

use crate::simulation::World;

const LOGOUT: &str = "1970-01-01T00:02:03Z";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_logout_expires_the_key_at_once_even_with_an_auth_key() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    let answer =
        world.send_register(&machine, json!({ "Expiry": LOGOUT, "Auth": { "AuthKey": key } }));
    assert_eq!(answer["NodeKeyExpired"], true);
    assert!(world.poll(&mut machine) && world.poll(&mut peer));
    assert_eq!(machine.own["Expired"], true);
    assert_eq!(peer.peer(&machine)["KeyExpiry"], json!(world.now.text()));
    assert!(machine.has_ended);
    assert_eq!(world.register(&mut machine, &key), "", "it may log in again");
    world.follow(&mut machine);
    assert_eq!((machine.own.get("Expired"), machine.peers.len()), (None, 1));
}

#[test]
fn an_expiry_is_sent_when_due_and_an_extension_revives_the_node() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let at = world.now.after(seconds(3600));
    world.state.set_expiry(machine.id, Some(at), world.now).unwrap();
    world.commit();
    assert!(world.poll(&mut machine));
    assert_eq!(
        (machine.own["KeyExpiry"].clone(), machine.own.get("Expired")),
        (json!(at.text()), None)
    );
    world.pass(seconds(3599));
    assert!(!world.poll(&mut machine));
    world.pass(seconds(1));
    assert!(world.poll(&mut machine) && machine.has_ended);
    assert_eq!(machine.own["Expired"], true);
    world.follow(&mut machine);
    world.state.set_expiry(machine.id, None, world.now).unwrap();
    world.commit();
    assert!(world.poll(&mut machine) && machine.has_ended);
    world.follow(&mut machine);
    assert_eq!(machine.own["KeyExpiry"], "0001-01-01T00:00:00Z");
    assert!(!machine.has_ended);
}

#[test]
fn a_node_with_an_expired_key_receives_only_itself_and_no_relays() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let peer = world.join(2, &key);
    assert!(world.state.has_valid_key(&machine.key, world.now));
    world.state.set_expiry(machine.id, Some(world.now), world.now).unwrap();
    world.commit();
    assert!(!world.state.has_valid_key(&machine.key, world.now));
    assert!(world.state.has_valid_key(&peer.key, world.now));
    world.follow(&mut machine);
    assert_eq!(machine.own["Expired"], true);
    assert!(machine.peers.is_empty());
    assert_eq!(machine.filter, json!([]));
    world.join(3, &key);
    assert!(!world.poll(&mut machine), "it receives no changes of other nodes");
}

#[test]
fn a_deleted_node_gets_an_expired_key_and_is_removed_from_its_peers() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    world.state.delete_node(machine.id).unwrap();
    world.commit();
    world.poll(&mut machine);
    assert!(machine.has_ended);
    assert_eq!(machine.own["KeyExpiry"], LOGOUT);
    world.poll(&mut peer);
    assert!(peer.peers.is_empty());
    let id = machine.id;
    assert_eq!(world.register(&mut machine, &key), "");
    assert!(machine.id > id, "another node");
}

#[test]
fn short_disconnections_are_hidden_and_long_ones_are_sent_once() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut peer = world.join(2, &key);
    world.poll(&mut machine);
    world.disconnect(&mut machine);
    world.pass(seconds(5));
    world.follow(&mut machine);
    world.pass(seconds(20));
    assert!(!world.poll(&mut peer), "it reconnected in time");
    world.disconnect(&mut machine);
    let disconnected_at = world.now;
    world.pass(seconds(9));
    assert!(!world.poll(&mut peer));
    world.pass(seconds(1));
    assert!(world.poll(&mut peer));
    let received = peer.peer(&machine);
    assert_eq!(
        (&received["Online"], &received["LastSeen"]),
        (&json!(false), &json!(disconnected_at.text()))
    );
    world.follow(&mut machine);
    world.poll(&mut peer);
    assert_eq!(peer.peer(&machine)["Online"], true);
    assert_eq!(peer.frames.last().unwrap(), &["ControlTime", "OnlineChange", "Seq"]);
}

#[test]
fn an_ephemeral_node_is_deleted_after_its_own_absence_only() {
    let mut world = World::new();
    let user = Some(world.user);
    let brief = NewKey { user, reusable: true, ephemeral: true, ..NewKey::default() };
    let brief = world.auth_key(brief);
    let key = world.reusable();
    let mut machine = world.join(1, &brief);
    let mut peer = world.join(2, &key);
    world.disconnect(&mut machine);
    world.pass(seconds(29 * 60));
    assert!(world.state.node(machine.id).is_some());
    world.follow(&mut machine);
    world.pass(seconds(3600));
    assert!(world.state.node(machine.id).is_some(), "it is connected");
    world.now = world.now.after(seconds(24 * 3600));
    world.restart();
    world.pass(seconds(60));
    world.follow(&mut machine);
    world.pass(seconds(3600));
    assert!(world.state.node(machine.id).is_some(), "it reconnected soon after the server");
    world.follow(&mut peer);
    world.disconnect(&mut machine);
    world.pass(seconds(30 * 60));
    assert!(world.state.node(machine.id).is_none());
    while world.poll(&mut peer) {}
    assert_eq!(peer.peer(&machine), &Value::Null);
    let mut other = world.join(3, &brief);
    let answer = world.send_register(&other, json!({ "Expiry": LOGOUT }));
    assert_eq!(answer["NodeKeyExpired"], true);
    assert!(world.state.node(other.id).is_none(), "a logout deletes it");
    world.poll(&mut other);
    assert!(other.has_ended);
}

#[test]
fn a_restart_loses_nothing() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machines: Vec<_> = (1..=5).map(|number| world.join(number, &key)).collect();
    world.state.rename_node(machines[0].id, "printer", world.now).unwrap();
    world.state.tag_node(machines[1].id, &["tag:x".into()], world.now).unwrap();
    world.commit();
    for machine in &mut machines {
        while world.poll(machine) {}
    }
    let before: Vec<_> = machines.iter().map(|machine| machine.peers.clone()).collect();
    world.restart();
    for machine in &mut machines {
        world.follow(machine);
    }
    for (machine, before) in machines.iter_mut().zip(before) {
        while world.poll(machine) {}
        assert_eq!(machine.peers, before);
    }
}

#[test]
fn last_seen_times_survive_a_killed_and_a_stopped_server() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let id = machine.id;
    let seen = |world: &World| world.state.node(id).unwrap().node.last_seen;
    world.pass(seconds(1));
    let connected = world.now;
    world.restart();
    assert_eq!(seen(&world), Some(connected), "the server was killed at once");
    world.follow(&mut machine);
    assert_eq!(seen(&world), Some(connected), "a new stream writes nothing");
    world.pass(seconds(3600));
    let ago = world.now.since(seen(&world).unwrap());
    assert!(ago < seconds(11 * 60), "seen {ago:?} ago, and connected all the time");
    world.restart();
    assert!(
        world.now.since(seen(&world).unwrap()) < seconds(11 * 60),
        "the server was killed later"
    );
    world.follow(&mut machine);
    world.pass(seconds(60));
    world.state.record_all_seen(world.now);
    world.commit();
    world.restart();
    assert_eq!(seen(&world), Some(world.now), "the server was stopped");
    world.pass(seconds(3600));
    assert_eq!(seen(&world), Some(world.now.before(seconds(3600))), "it did not reconnect");
}
