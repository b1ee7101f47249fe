//! Streams that go on where a former one broke off.

use proptest::prelude::*;
use serde_json::json;

use crate::{
    policy::{key_of, policy, save, tagged},
    simulation::{Machine, World},
};

const SERVER: &str = "a";

fn fields(machine: &Machine) -> &[String] {
    machine.frames.last().expect("it was told something")
}

#[test]
fn what_changed_meanwhile_is_told_and_no_more() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let mut others: Vec<Machine> = (1..=20).map(|number| world.join(number, &key)).collect();
    world.disconnect(&mut sleeper);
    assert!(!world.resume(&mut sleeper, SERVER), "it followed none that can be gone on with");
    world.disconnect(&mut sleeper);
    world.send_update(&others[3], json!({ "Endpoints": ["192.0.2.99:1"] }));
    let gone = others.pop().unwrap();
    world.state.delete_node(gone.id).unwrap();
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
    assert!(sleeper.peer(&gone).is_null() && sleeper.peer(&new).is_object());
    assert_eq!(sleeper.peers.len(), 20);
    // It follows on.
    world.send_update(&others[0], json!({ "Endpoints": ["192.0.2.98:1"] }));
    assert!(world.poll(&mut sleeper));
    assert_eq!(sleeper.peer(&others[0])["Endpoints"], json!(["192.0.2.98:1"]));
    assert!(!world.poll(&mut sleeper));
}

#[test]
fn another_server_begins_anew_and_so_does_who_was_away_for_too_long() {
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
    assert!(!world.resume(&mut sleeper, "b"), "no log is so long");
    world.disconnect(&mut sleeper);
    // One more than the log keeps.
    for number in 0..=1_u32 << 16 {
        let endpoint = format!("192.0.{}.1:{}", number >> 15, 1 + number % (1 << 15));
        world.apply_map_request(&other, json!({ "Endpoints": [endpoint] }));
    }
    world.commit();
    assert!(!world.resume(&mut sleeper, "b"));
    assert_eq!(sleeper.peer(&other)["Endpoints"], json!(["192.0.2.1:1"]));
}

#[test]
fn where_it_may_be_others_whom_it_sees_all_is_told_anew() {
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

/// Something that happens to a network.
#[derive(Clone, Debug)]
enum ReachabilityStep {
    Join(bool),
    Move(usize),
    Lose(usize),
    Tag(usize, usize),
    Delete(usize),
    Policy(usize),
    Blink,
}

fn steps() -> impl Strategy<Value = Vec<ReachabilityStep>> {
    let step = prop_oneof![
        any::<bool>().prop_map(ReachabilityStep::Join),
        (0..20_usize).prop_map(ReachabilityStep::Move),
        (0..20_usize).prop_map(ReachabilityStep::Lose),
        (0..20_usize, 0..2_usize).prop_map(|(at, tag)| ReachabilityStep::Tag(at, tag)),
        (0..20_usize).prop_map(ReachabilityStep::Delete),
        (0..3_usize).prop_map(ReachabilityStep::Policy),
        Just(ReachabilityStep::Blink),
        Just(ReachabilityStep::Blink),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn who_goes_on_knows_what_who_begins_anew_is_told(steps in steps()) {
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
                ReachabilityStep::Join(is_tagged) => {
                    machines.push(world.join(number, &keys[usize::from(is_tagged)]));
                }
                ReachabilityStep::Move(which) if let Some(which) = at(which) => {
                    let machine = &machines[which % machines.len()];
                    world.send_update(machine, json!({ "Endpoints": [format!("192.0.2.7:{number}")] }));
                }
                ReachabilityStep::Lose(which) if let Some(which) = at(which) => {
                    let which = which % machines.len();
                    world.disconnect(&mut machines[which]);
                    world.pass(std::time::Duration::from_secs(60));
                    world.follow(&mut machines[which]);
                }
                ReachabilityStep::Tag(which, tag) if let Some(which) = at(which) => {
                    let id = machines[which % machines.len()].id;
                    let tags = [["tag:db", "tag:web"][tag].to_owned()];
                    world.state.tag_node(id, &tags, world.now).unwrap();
                    world.commit();
                }
                ReachabilityStep::Delete(which) if let Some(which) = at(which) => {
                    let machine = machines.remove(which % machines.len());
                    world.state.delete_node(machine.id).unwrap();
                    world.commit();
                }
                ReachabilityStep::Policy(which) => save(&mut world, &policy(&rules[which])),
                ReachabilityStep::Blink => {
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
