//! Renamed and deleted users that the policy names.

use coordinator::{Refusal, Settings};
use serde_json::{Value, json};

use crate::{
    policy::{key_of, policy, save, tagged},
    sign_in::profile,
    simulation::{Machine, World},
};

/// A policy that allows these users to reach the database.
fn policy_for(names: &[&str]) -> Value {
    let rule = json!({ "action": "accept", "src": names, "dst": ["tag:db:5432"] });
    policy(&json!({ "acls": [rule], "groups": { "group:a": names } }))
}

/// A network with Ben's laptop, a database, and a policy for these names.
fn network(world: &mut World, names: &[&str]) -> (Machine, Machine) {
    let ben = world.add_user("ben");
    let (bens, db) = (key_of(world, ben), tagged(world, "tag:db"));
    save(world, &policy_for(names));
    (world.join(1, &bens), world.join(2, &db))
}

/// The addresses that reach the database, after its stream started again.
fn sources(world: &mut World, db: &mut Machine) -> String {
    world.follow(db);
    while world.poll(db) {}
    db.filter.to_string()
}

#[test]
fn a_renamed_user_keeps_all_rights_and_the_old_name_loses_them() {
    let mut world = World::new();
    let (laptop, mut db) = network(&mut world, &["ben@"]);
    let ben = world.state.find_user("ben").unwrap().id;
    world.state.rename_user(ben, "benedict", world.now).unwrap();
    world.commit();
    let next = world.add_user("ben");
    let next = key_of(&mut world, next);
    let others = world.join(3, &next);
    for _ in 0..2 {
        let found = sources(&mut world, &mut db);
        assert!(found.contains(&world.address(&laptop)), "{found}");
        assert!(!found.contains(&world.address(&others)), "{found}");
        let text = &world.state.policy().unwrap().text;
        assert_eq!(
            (text.matches("\"benedict@\"").count(), text.matches("\"ben@\"").count()),
            (2, 0)
        );
        assert!(world.state.unmatched_policy_names().is_empty());
        world.restart();
    }
}

#[test]
fn a_rename_that_is_not_stored_does_not_change_the_policy() {
    let mut world = World::new();
    let (laptop, mut db) = network(&mut world, &["ben@"]);
    let ben = world.state.find_user("ben").unwrap().id;
    world.state.rename_user(ben, "benedict", world.now).unwrap();
    world.state.undo(world.now);
    world.commit();
    assert!(world.state.policy().unwrap().text.contains("\"ben@\""));
    let found = sources(&mut world, &mut db);
    assert!(found.contains(&world.address(&laptop)), "{found}");
}

#[test]
fn a_rename_to_a_name_in_the_policy_is_refused() {
    let mut world = World::new();
    network(&mut world, &["ben@", "root@"]);
    let ben = world.state.find_user("ben").unwrap().id;
    let refused = world.state.rename_user(ben, "root", world.now).unwrap_err();
    assert!(matches!(refused, Refusal::NameInPolicy(_)), "{refused}");
    assert!(refused.to_string().contains("acls[0].src[1]: \"root@\""), "{refused}");
    for name in ["tag:db", "group:a", "autogroup:owner", "svc:x", "user:*"] {
        assert!(world.state.rename_user(ben, name, world.now).is_err(), "{name}");
    }
    assert!(world.state.find_user("ben").is_ok());
    world.state.rename_user(ben, "b:e\"n", world.now).unwrap();
    world.commit();
    world.restart();
    assert_eq!(world.state.unmatched_policy_names().len(), 2, "root@ matches no user");
}

#[test]
fn a_rename_that_makes_the_policy_name_another_user_is_refused() {
    let mut world = World::new();
    network(&mut world, &["ben@"]);
    world.add_user("carl");
    let rule = json!({"action": "accept", "src": ["ben@"], "dst": ["ben@:*"]});
    save(&mut world, &json!({ "acls": [rule] }));
    let before = world.state.policy().unwrap().text.clone();
    let ben = world.state.find_user("ben").unwrap().id;
    // Brackets of a target enclose an address.
    for name in ["[carl]", "carl@"] {
        assert!(world.state.rename_user(ben, name, world.now).is_err(), "{name}");
        assert_eq!(world.state.policy().unwrap().text, before);
    }
    world.state.rename_user(ben, "benedict", world.now).unwrap();
}

#[test]
fn a_login_does_not_take_a_trusted_name_that_is_in_the_policy() {
    let mut world = World::with(Settings { trusts_usernames: true, ..Settings::default() });
    let clara = world.state.sign_in(&profile("1", "clara"), world.now).unwrap();
    save(&mut world, &policy_for(&["clara@", "root@"]));
    assert_eq!(world.state.sign_in(&profile("1", "root"), world.now), Ok(clara));
    assert!(world.state.find_user("clara").is_ok() && world.state.find_user("root").is_err());
    assert!(world.state.policy().unwrap().text.contains("\"clara@\""));
}

#[test]
fn a_user_in_the_policy_cannot_be_deleted() {
    let mut world = World::new();
    let (laptop, _) = network(&mut world, &["ben@"]);
    let ben = world.state.find_user("ben").unwrap().id;
    world.state.delete_node(laptop.id).unwrap();
    world.commit();
    for _ in 0..2 {
        let refused = world.state.delete_user(ben).unwrap_err();
        assert!(matches!(refused, Refusal::InPolicy(..)), "{refused}");
        assert!(refused.to_string().contains("acls[0].src[0]: \"ben@\""), "{refused}");
        world.restart();
    }
    save(&mut world, &policy_for(&["anna@"]));
    world.state.delete_user(ben).unwrap();
}

#[test]
fn a_user_of_a_provider_cannot_be_deleted_while_the_policy_has_the_mail_address() {
    let mut world = World::new();
    let clara = world.state.sign_in(&profile("1", "clara"), world.now).unwrap();
    save(&mut world, &policy_for(&["Clara@net.test"]));
    assert!(matches!(world.state.delete_user(clara), Err(Refusal::InPolicy(..))));
    save(&mut world, &policy_for(&["clara@"]));
    world.state.delete_user(clara).unwrap();
}

#[test]
fn a_trusted_name_changed_by_the_provider_is_changed_in_the_policy() {
    let mut world = World::with(Settings { trusts_usernames: true, ..Settings::default() });
    let clara = world.state.sign_in(&profile("1", "clara"), world.now).unwrap();
    save(&mut world, &policy_for(&["clara@"]));
    assert_eq!(world.state.sign_in(&profile("1", "clara.m"), world.now), Ok(clara));
    world.commit();
    assert!(world.state.policy().unwrap().text.contains("\"clara.m@\""));
    world.state.sign_in(&profile("2", "clara"), world.now).unwrap();
    assert!(world.state.unmatched_policy_names().is_empty());
    assert!(matches!(world.state.delete_user(clara), Err(Refusal::InPolicy(..))));
}

#[test]
fn names_in_the_policy_that_match_no_user_are_reported() {
    let mut world = World::new();
    network(&mut world, &["ben@", "eve@"]);
    let wanted = [
        "line 1, acls[0].src[1]: \"eve@\" matches no user",
        "line 1, groups.group:a[1]: \"eve@\" matches no user",
    ];
    let mut found = world.state.unmatched_policy_names();
    found.sort();
    assert_eq!(found, wanted);
}
