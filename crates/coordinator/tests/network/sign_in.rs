//! Users from a provider, and the nodes that they approve.

use std::time::Duration;

use coordinator::{
    Admission, Profile, Refusal, Settings,
    object::{Identity, RegisterMethod, User, UserId},
};
use serde_json::json;
use tailnet::keys::NodePublic;

use crate::{
    policy::save,
    simulation::{Machine, URL, World},
};

pub(crate) fn profile(subject: &str, username: &str) -> Profile {
    Profile {
        identity: Identity { issuer: "https://id.test".into(), subject: subject.into() },
        username: username.into(),
        display_name: String::new(),
        email: format!("{username}@net.test"),
        picture_url: String::new(),
        groups: Vec::new(),
    }
}

fn user(world: &World, id: UserId) -> User {
    world.state.users().find(|user| user.id == id).unwrap().clone()
}

/// A machine registers without a key, and a user approves it by a login.
fn log_in(world: &mut World, machine: &mut Machine, who: &Profile) {
    let answer = world.send_register(machine, json!({}));
    let number = answer["AuthURL"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    let user = world.state.sign_in(who, world.now).unwrap();
    let by = Admission { user, method: RegisterMethod::Oidc, expires: None };
    machine.id = world.state.admit(&number, by, world.now).unwrap();
    world.commit();
}

#[test]
fn a_user_is_identified_by_issuer_and_subject_not_by_name() {
    let mut world = World::new();
    let first = world.state.sign_in(&profile("1", "clara"), world.now).unwrap();
    world.commit();
    world.restart();
    let mut later = profile("1", "clara.m");
    later.groups = vec!["b".into(), "a".into(), "a".into(), String::new()];
    later.display_name = "Clara M".into();
    assert_eq!(world.state.sign_in(&later, world.now), Ok(first));
    world.commit();
    world.restart();
    let stored = user(&world, first);
    assert_eq!((stored.name.as_str(), stored.email.as_str()), ("clara.m", "clara.m@net.test"));
    assert_eq!(
        (stored.groups, stored.display_name),
        (vec!["a".into(), "b".into()], "Clara M".into())
    );
    let elsewhere = Identity { issuer: "https://other.test".into(), subject: "1".into() };
    let other = Profile { identity: elsewhere, ..profile("1", "clara.m") };
    assert_ne!(world.state.sign_in(&other, world.now), Ok(first));
    let refused = world.state.rename_user(first, "else", world.now);
    assert_eq!(refused, Err(Refusal::NameFromProvider(first)));
}

#[test]
fn a_user_of_headscale_is_found_at_the_next_login() {
    let mut world = World::new();
    let stored = Identity::of_headscale("https://id.test/1");
    let old = User { name: "clara".into(), identity: Some(stored), ..User::default() };
    let old = world.state.create_user(old, world.now).unwrap().id;
    assert_ne!(world.state.sign_in(&profile("11", "clara"), world.now), Ok(old));
    assert_eq!(world.state.sign_in(&profile("1", "clara"), world.now), Ok(old));
    assert_eq!(user(&world, old).identity, Some(profile("1", "").identity));
}

#[test]
fn a_login_cannot_take_the_name_or_mail_address_of_another_user() {
    let mut world = World::new();
    let mut name = |subject: &str, username: &str, email: &str| {
        let profile = Profile { email: email.into(), ..profile(subject, username) };
        let id = world.state.sign_in(&profile, world.now).unwrap();
        user(&world, id).name
    };
    // The first user, anna, was created by an administrator.
    assert_eq!(name("1", "anna", "x@net.test"), "anna-1");
    assert_eq!(name("1", "anna", "x@net.test"), "anna-1");
    assert_eq!(name("2", "boss@net.test", "mallory@net.test"), "mallory@net.test");
    assert_eq!(name("3", "boss@net.test", "Boss@net.test"), "boss@net.test");
    assert_eq!(name("4", "1", ""), "user-5");
    assert_eq!(name("5", "two words", ""), "user-6");
}

/// Whether a user of a provider reaches a node, by a policy that allows this name.
fn reaches(trusts_usernames: bool, name: &str, profile: &Profile) -> bool {
    let mut world = World::with(Settings { trusts_usernames, ..Settings::default() });
    let key = world.reusable();
    let mut target = world.join(1, &key);
    let rule = json!({ "action": "accept", "src": [name], "dst": ["anna@:22"] });
    save(&mut world, &json!({ "acls": [rule] }));
    let mut machine = Machine::new(2);
    log_in(&mut world, &mut machine, profile);
    world.follow(&mut target);
    target.filter.to_string().contains(&world.address(&machine))
}

#[test]
fn a_policy_matches_provider_names_only_if_they_are_trusted() {
    let clara = profile("1", "clara");
    let thief = Profile { email: "mallory@net.test".into(), ..profile("2", "clara") };
    assert!(reaches(false, "clara@net.test", &clara));
    assert!(!reaches(false, "clara@net.test", &thief));
    assert!(!reaches(false, "clara@", &thief) && !reaches(false, "clara@", &clara));
    assert!(reaches(true, "clara@", &clara));
}

#[test]
fn an_untrusted_provider_name_in_the_policy_is_reported() {
    let mut world = World::new();
    let rule = json!({ "action": "accept", "src": ["clara@"], "dst": ["anna@:22", "dora@:22"] });
    save(&mut world, &json!({ "acls": [rule] }));
    assert!(world.state.untrusted_policy_names().is_empty());
    for (subject, name) in [("1", "clara"), ("2", "dora"), ("3", "lara")] {
        world.state.sign_in(&profile(subject, name), world.now).unwrap();
    }
    assert_eq!(world.state.untrusted_policy_names(), ["clara", "dora"]);
}

#[test]
fn a_login_after_the_key_expired_keeps_the_node() {
    let mut world = World::new();
    let (who, mut machine) = (profile("1", "clara"), Machine::new(1));
    log_in(&mut world, &mut machine, &who);
    let (id, address, name) = (machine.id, world.address(&machine), world.name(&machine));
    let is_oidc = |world: &World| world.state.node(id).unwrap().node.method == RegisterMethod::Oidc;
    assert!(is_oidc(&world));
    world.state.set_expiry(id, Some(world.now), world.now).unwrap();
    world.pass(Duration::from_secs(1));
    for key in [machine.key, NodePublic([77; 32])] {
        machine.key = key;
        log_in(&mut world, &mut machine, &who);
        assert_eq!((machine.id, world.address(&machine)), (id, address.clone()));
        assert_eq!(world.name(&machine), name);
    }
    assert_eq!(world.state.nodes().count(), 1);
}

#[test]
fn a_login_of_another_user_on_a_machine_is_another_node() {
    let mut world = World::new();
    let mut machine = Machine::new(1);
    log_in(&mut world, &mut machine, &profile("1", "clara"));
    let first = machine.id;
    machine.key = NodePublic([77; 32]);
    let answer = world.send_register(&machine, json!({}));
    let number = answer["AuthURL"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    let clara = world.state.node(first).unwrap().node.user.unwrap();
    assert_eq!(world.state.existing_node_for(&number, clara).unwrap().id, first);
    let other = world.state.sign_in(&profile("2", "dora"), world.now).unwrap();
    assert!(world.state.existing_node_for(&number, other).is_none());
    log_in(&mut world, &mut machine, &profile("2", "dora"));
    assert_ne!(machine.id, first);
    assert_eq!(world.state.node(first).unwrap().node.user, Some(clara));
}

#[test]
fn a_login_sets_the_expiry_of_the_key() {
    let mut world = World::new();
    let machine = Machine::new(1);
    let answer = world.send_register(&machine, json!({}));
    let number = answer["AuthURL"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    let user = world.state.sign_in(&profile("1", "clara"), world.now).unwrap();
    let expires = Some(world.now.after(Duration::from_secs(60)));
    let by = Admission { user, method: RegisterMethod::Oidc, expires };
    let id = world.state.admit(&number, by, world.now).unwrap();
    world.commit();
    assert!(!world.state.node(id).unwrap().node.has_expired(world.now));
    world.pass(Duration::from_secs(61));
    assert!(world.state.node(id).unwrap().node.has_expired(world.now));
}
