//! Streams that resume a previous one.

use proptest::prelude::*;
use serde_json::json;

use crate::{
    policy::{key_of, policy, save, tagged},
    simulation::{Machine, World},
};

const SERVER: &str = "a";

fn fields(machine: &Machine) -> &[String] {
    machine.frames.last().expect("a frame")
}

#[test]
fn a_resumed_stream_gets_only_the_changes_since() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let mut others: Vec<Machine> = (1..=20).map(|number| world.join(number, &key)).collect();
    world.disconnect(&mut sleeper);
    assert!(!world.resume(&mut sleeper, SERVER), "it has no stream that can be resumed");
    world.disconnect(&mut sleeper);
    world.send_update(&others[3], json!({ "Endpoints": ["192.0.2.99:1"] }));
    let removed = others.pop().unwrap();
    world.state.delete_node(removed.id).unwrap();
    world.commit();
    let new = world.join(100, &key);
    assert!(world.resume(&mut sleeper, SERVER));
    let expected = [
        "ControlTime",
        "MapSessionHandle",
        "Node",
        "PacketFilters",
        "PeersChanged",
        "PeersRemoved",
        "SSHPolicy",
        "Seq",
        "UserProfiles",
    ];
    assert_eq!(fields(&sleeper), expected);
    assert_eq!(sleeper.peer(&others[3])["Endpoints"], json!(["192.0.2.99:1"]));
    assert!(sleeper.peer(&removed).is_null() && sleeper.peer(&new).is_object());
    assert_eq!(sleeper.peers.len(), 20);
    // The stream continues.
    world.send_update(&others[0], json!({ "Endpoints": ["192.0.2.98:1"] }));
    assert!(world.poll(&mut sleeper));
    assert_eq!(sleeper.peer(&others[0])["Endpoints"], json!(["192.0.2.98:1"]));
    assert!(!world.poll(&mut sleeper));
}

#[test]
fn a_stream_of_another_network_or_after_too_many_changes_gets_a_full_map() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let other = world.join(1, &key);
    world.disconnect(&mut sleeper);
    world.resume(&mut sleeper, SERVER);
    world.disconnect(&mut sleeper);
    assert!(!world.resume(&mut sleeper, "b"));
    world.disconnect(&mut sleeper);
    sleeper.position.1 = i64::MAX;
    assert!(!world.resume(&mut sleeper, "b"), "the log is shorter");
    world.disconnect(&mut sleeper);
    // One more than the capacity of the log.
    for number in 0..=1_u32 << 16 {
        let endpoint = format!("192.0.{}.1:{}", number >> 15, 1 + number % (1 << 15));
        world.apply_map_request(&other, json!({ "Endpoints": [endpoint] }));
    }
    world.commit();
    assert!(!world.resume(&mut sleeper, "b"));
    assert_eq!(sleeper.peer(&other)["Endpoints"], json!(["192.0.2.1:1"]));
}

#[test]
fn a_stream_after_a_change_of_visibility_gets_a_full_map() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let other = world.join(1, &key);
    world.disconnect(&mut sleeper);
    world.resume(&mut sleeper, SERVER);
    world.disconnect(&mut sleeper);
    save(&mut world, &policy(&json!({ "acls": [] })));
    assert!(!world.resume(&mut sleeper, SERVER));
    assert!(sleeper.peer(&other).is_null());
}

/// A change of the network.
#[derive(Clone, Debug)]
enum Step {
    Join(bool),
    Move(usize),
    Lose(usize),
    Tag(usize, usize),
    Delete(usize),
    Policy(usize),
    Blink,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        any::<bool>().prop_map(Step::Join),
        (0..20_usize).prop_map(Step::Move),
        (0..20_usize).prop_map(Step::Lose),
        (0..20_usize, 0..2_usize).prop_map(|(at, tag)| Step::Tag(at, tag)),
        (0..20_usize).prop_map(Step::Delete),
        (0..3_usize).prop_map(Step::Policy),
        Just(Step::Blink),
        Just(Step::Blink),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_resumed_stream_has_the_same_peers_as_a_new_one(steps in steps()) {
        let mut world = World::new();
        let user = world.user;
        let keys = [key_of(&mut world, user), tagged(&mut world, "tag:db")];
        let rules = [
            json!({ "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }] }),
            json!({ "acls": [{ "action": "accept", "src": ["anna@"], "dst": ["tag:db:5432"] }] }),
            json!({ "acls": [{ "action": "accept", "src": ["tag:db"], "dst": ["tag:db:*"] }] }),
        ];
        let mut sleeper = world.join(200, &keys[0]);
        world.disconnect(&mut sleeper);
        world.resume(&mut sleeper, SERVER);
        let mut machines: Vec<Machine> = Vec::new();
        for (number, step) in (1..).zip(steps) {
            let at = |at: usize| Some(at).filter(|_| !machines.is_empty());
            match step {
                Step::Join(is_tagged) => {
                    machines.push(world.join(number, &keys[usize::from(is_tagged)]));
                }
                Step::Move(which) if let Some(which) = at(which) => {
                    let machine = &machines[which % machines.len()];
                    world.send_update(machine, json!({ "Endpoints": [format!("192.0.2.7:{number}")] }));
                }
                Step::Lose(which) if let Some(which) = at(which) => {
                    let which = which % machines.len();
                    world.disconnect(&mut machines[which]);
                    world.pass(std::time::Duration::from_secs(60));
                    world.follow(&mut machines[which]);
                }
                Step::Tag(which, tag) if let Some(which) = at(which) => {
                    let id = machines[which % machines.len()].id;
                    let tags = [["tag:db", "tag:web"][tag].to_owned()];
                    world.state.tag_node(id, &tags, world.now).unwrap();
                    world.commit();
                }
                Step::Delete(which) if let Some(which) = at(which) => {
                    let machine = machines.remove(which % machines.len());
                    world.state.delete_node(machine.id).unwrap();
                    world.commit();
                }
                Step::Policy(which) => save(&mut world, &policy(&rules[which])),
                Step::Blink => {
                    world.disconnect(&mut sleeper);
                    world.resume(&mut sleeper, SERVER);
                }
                _ => {}
            }
            if number % 3 == 0 {
                while world.poll(&mut sleeper) {}
            }
        }
        world.disconnect(&mut sleeper);
        world.resume(&mut sleeper, SERVER);
        let known = std::mem::take(&mut sleeper.peers);
        world.disconnect(&mut sleeper);
        world.follow(&mut sleeper);
        prop_assert_eq!(known, sleeper.peers);
    }
}
