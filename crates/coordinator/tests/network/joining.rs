//! Registration of nodes, by keys and by approval.

use std::time::Duration;

use coordinator::{Admission, NewKey, Refusal, object::RegisterMethod};
use serde_json::json;
use tailnet::keys::NodePublic;

use crate::{
    policy::{key_of, policy, save},
    simulation::{Machine, URL, World},
};

#[test]
fn a_key_that_is_used_up_still_registers_the_machine_that_used_it() {
    let mut world = World::new();
    let key = world.auth_key(NewKey { user: Some(world.user), ..NewKey::default() });
    let mut machine = Machine::new(1);
    assert_eq!(world.register(&mut machine, &key), "");
    world.restart();
    assert_eq!(world.register(&mut machine, &key), "", "the client restarts");
    let mut other = Machine::new(2);
    assert!(world.register(&mut other, &key).contains("used already"));
    let id = world.state.keys().next().unwrap().id;
    world.state.expire_key(id, world.now).unwrap();
    assert!(world.register(&mut other, &key).contains("expired"));
    assert_eq!(world.register(&mut machine, &key), "");
}

#[test]
fn wrong_expired_and_deleted_keys_are_refused() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = Machine::new(1);
    let wrong = format!("{}0", &key[..key.len() - 1]);
    for text in ["x", wrong.as_str(), &key[1..]] {
        assert_eq!(world.register(&mut machine, text), "invalid auth key");
    }
    let expires = Some(world.now.after(Duration::from_secs(60)));
    let brief = NewKey { user: Some(world.user), reusable: true, expires, ..NewKey::default() };
    let brief = world.auth_key(brief);
    world.pass(Duration::from_secs(60));
    assert!(world.register(&mut machine, &brief).contains("expired"));
    let id = world.state.keys().next().unwrap().id;
    world.state.delete_key(id).unwrap();
    assert_eq!(world.register(&mut machine, &key), "invalid auth key");
    assert_eq!(world.state.nodes().count(), 0);
}

#[test]
fn a_stored_key_does_not_contain_its_text() {
    let mut world = World::new();
    let key = world.reusable();
    let secret = key.rsplit('-').next().unwrap();
    let stored: String = world.store.values().filter_map(|stored| stored.body.clone()).collect();
    assert!(stored.contains("prefix") && !stored.contains(secret));
}

#[test]
fn a_machine_that_registers_again_is_the_same_node_with_its_new_key() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let mut watcher = world.join(2, &key);
    let (id, address, name) = (machine.id, world.address(&machine), world.name(&machine));
    let old = machine.key;
    machine.key = NodePublic([77; 32]);
    assert_eq!(world.register(&mut machine, &key), "");
    assert_eq!((machine.id, world.address(&machine)), (id, address));
    assert_eq!(world.name(&machine), name);
    assert_eq!(world.state.node(id).unwrap().node.rekeyed, Some(world.now));
    assert!(!world.state.has_key(&old) && world.state.has_key(&machine.key));
    world.poll(&mut watcher);
    assert_eq!(watcher.peer(&machine)["Key"], json!(machine.key));
}

#[test]
fn a_machine_that_registers_for_another_user_is_another_node() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let first = machine.id;
    let ben = world.add_user("ben");
    let other = key_of(&mut world, ben);
    machine.key = NodePublic([77; 32]);
    assert_eq!(world.register(&mut machine, &other), "");
    assert_ne!(machine.id, first);
    assert_eq!(world.state.nodes().count(), 2);
}

#[test]
fn a_node_key_of_another_user_after_a_logout_removes_its_previous_node() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let first = machine.id;
    let ben = world.add_user("ben");
    let other = key_of(&mut world, ben);
    world.send_register(&machine, json!({ "Expiry": "1970-01-01T00:02:03Z" }));
    assert_eq!(world.register(&mut machine, &other), "");
    assert!(world.state.node(first).is_none());
    assert_eq!(world.state.nodes().map(|view| view.node.user).collect::<Vec<_>>(), [Some(ben)]);
}

#[test]
fn a_node_that_requests_a_tag_later_loses_owner_and_expiry() {
    let mut world = World::new();
    save(&mut world, &policy(&json!({})));
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    machine.hostinfo["RequestTags"] = json!(["tag:web"]);
    assert_eq!(world.register(&mut machine, &key), "");
    let node = world.state.node(machine.id).unwrap().node;
    assert_eq!((node.user, node.expires, &*node.tags), (None, None, &["tag:web".to_owned()][..]));
}

#[test]
fn a_node_key_of_another_machine_is_refused() {
    let mut world = World::new();
    let key = world.reusable();
    let victim = world.join(1, &key);
    let mut thief = Machine::new(2);
    thief.key = victim.key;
    assert!(world.register(&mut thief, &key).contains("another machine"));
    let out = world.send_register(&thief, json!({ "Expiry": "1970-01-01T00:02:03Z" }));
    assert!(out["Error"].as_str().unwrap().contains("another machine"));
    assert!(world.state.find_machine_node(&thief.machine, &victim.key).is_none());
    assert!(!world.state.node(victim.id).unwrap().node.has_expired(world.now));
}

#[test]
fn a_tagged_key_makes_nodes_without_owner_and_expiry() {
    let mut world = World::with(coordinator::Settings {
        key_lifetime: Some(Duration::from_secs(3600)),
        ..coordinator::Settings::default()
    });
    let tags = vec!["tag:b".to_owned(), "tag:a".to_owned()];
    let key = world.auth_key(NewKey { tags, reusable: true, ..NewKey::default() });
    let machine = world.join(1, &key);
    let own = world.reusable();
    let owned = world.join(2, &own);
    world.pass(Duration::from_secs(3600));
    let tagged = world.state.node(machine.id).unwrap().node;
    assert!(!tagged.has_expired(world.now) && tagged.user.is_none());
    assert_eq!(machine.own["Tags"], json!(["tag:a", "tag:b"]));
    assert_eq!(machine.own["User"], json!(2_147_455_555i64));
    assert!(world.state.node(owned.id).unwrap().node.has_expired(world.now));
    let wrong = NewKey { tags: vec!["b".into()], ..NewKey::default() };
    let text = coordinator::secret::write(&[99; 38]);
    let refused = world.state.create_key(wrong, &text, world.now);
    assert_eq!(refused, Err(Refusal::InvalidTag("b".into())));
}

#[test]
fn tags_that_the_policy_does_not_allow_are_refused_by_name() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = Machine::new(1);
    machine.hostinfo["RequestTags"] = json!(["tag:web"]);
    let refused = world.register(&mut machine, &key);
    assert!(refused.contains("[tag:web]"), "{refused}");
    assert_eq!(world.state.nodes().count(), 0);
}

#[test]
fn a_node_is_not_changed_by_a_registration_with_refused_tags() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    machine.hostinfo["RequestTags"] = json!(["tag:web"]);
    let refused = world.register(&mut machine, &key);
    assert!(refused.contains("[tag:web]"), "{refused}");
    let node = world.state.node(machine.id).unwrap().node;
    assert_eq!((node.user, node.tags.len()), (Some(world.user), 0));
    assert!(!world.poll(&mut machine), "nothing changed");
}

#[test]
fn a_stream_ends_when_the_key_of_its_node_changes() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    world.poll(&mut machine);
    machine.key = NodePublic([77; 32]);
    assert_eq!(world.register(&mut machine, &key), "");
    let frames = machine.frames.len();
    assert!(world.poll(&mut machine) && machine.has_ended);
    world.join(2, &key);
    world.poll(&mut machine);
    assert_eq!(machine.frames.len(), frames, "no further frames");
    world.follow(&mut machine);
    assert!(!machine.has_ended);
}

#[test]
fn a_machine_without_a_key_waits_for_approval_by_an_administrator() {
    let mut world = World::new();
    let mut machine = Machine::new(1);
    let answer = world.send_register(&machine, json!({}));
    let url = answer["AuthURL"].as_str().unwrap().to_owned();
    let number = url.strip_prefix(URL).unwrap().to_owned();
    let again = world.send_register(&machine, json!({ "Followup": url }));
    assert_eq!(again["AuthURL"], answer["AuthURL"]);
    let stranger = Machine::new(2);
    let followed = world.send_register(&stranger, json!({ "Followup": url }));
    assert_eq!(followed["MachineAuthorized"], false);
    assert_ne!(followed["AuthURL"], answer["AuthURL"], "each machine has its own registration");
    let by = by_cli(&world);
    assert_eq!(world.state.admit("other", by, world.now), Err(Refusal::NoRegistration));
    assert_eq!(world.state.pending_registration(&number).unwrap().hostinfo.hostname, "host-1");
    let waiting = world.send_register(&machine, json!({}));
    assert!(waiting["AuthURL"].as_str().unwrap().ends_with(&number));
    assert!(world.state.is_registration_pending(&number, world.now));
    let first = machine.key;
    machine.key = NodePublic([77; 32]);
    world.send_register(&machine, json!({ "Followup": url }));
    machine.id = world.state.admit(&number, by, world.now).unwrap();
    world.commit();
    assert!(!world.state.has_key(&first), "the registration is for the new key");
    assert!(!world.state.is_registration_pending(&number, world.now));
    let answer = world.send_register(&machine, json!({ "Followup": url }));
    assert_eq!((&answer["MachineAuthorized"], &answer["AuthURL"]), (&json!(true), &json!("")));
    world.pass(Duration::from_secs(7200));
    assert!(world.state.admit(&number, by, world.now).is_err());
}

#[test]
fn of_two_pending_machines_with_one_node_key_the_first_approved_has_it() {
    let mut world = World::new();
    let (victim, mut thief) = (Machine::new(1), Machine::new(2));
    thief.key = victim.key;
    let numbers = [&victim, &thief].map(|machine| {
        let answer = world.send_register(machine, json!({}));
        answer["AuthURL"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned()
    });
    let by = by_cli(&world);
    let id = world.state.admit(&numbers[0], by, world.now).unwrap();
    assert_eq!(world.state.admit(&numbers[1], by, world.now), Err(Refusal::NodeKeyInUse));
    world.commit();
    assert_eq!(world.state.find_machine_node(&victim.machine, &victim.key), Some(id));
    assert_eq!(world.send_register(&victim, json!({}))["MachineAuthorized"], true);
    assert!(
        world.send_register(&thief, json!({}))["Error"].to_string().contains("another machine")
    );
}

fn by_cli(world: &World) -> Admission {
    Admission { user: world.user, method: RegisterMethod::Cli, expires: None }
}

#[test]
fn names_addresses_and_numbers_are_unique() {
    let mut world = World::new();
    let key = world.reusable();
    let machines: Vec<Machine> = (1..=3)
        .map(|number| {
            let mut machine = Machine::new(number);
            machine.hostinfo["Hostname"] = json!("Laptop.local");
            assert_eq!(world.register(&mut machine, &key), "");
            machine
        })
        .collect();
    let names: Vec<String> = machines.iter().map(|machine| world.name(machine)).collect();
    assert_eq!(names, ["laptop", "laptop-1", "laptop-2"]);
    let addresses: Vec<String> = machines.iter().map(|machine| world.address(machine)).collect();
    assert_eq!(addresses, ["100.64.0.1", "100.64.0.2", "100.64.0.3"]);
    world.state.delete_node(machines[0].id).unwrap();
    world.commit();
    world.restart();
    let next = world.join(9, &key);
    assert!(next.id > machines[2].id, "numbers are not reused");
    let last = machines[2].id;
    world.state.delete_node(next.id).unwrap();
    world.commit();
    world.restart();
    let after = world.join(10, &key);
    assert!(after.id > next.id && next.id > last, "not after a restart either");
}
