//! Revoked keys, and keys of deleted users, before and after a restart.

use std::time::Duration;

use coordinator::{NewKey, Refusal, secret};

use crate::simulation::{Machine, World};

const HOUR: Duration = Duration::from_secs(3600);

/// A pre-auth key of another user.
fn key_of_ben(world: &mut World) -> String {
    let user = Some(world.add_user("ben"));
    world.auth_key(NewKey { user, reusable: true, ..NewKey::default() })
}

/// An API key that expires in an hour.
fn api_key(world: &mut World) -> String {
    let (text, end) = (secret::write_api(&[7; 38]), world.now.after(HOUR));
    world.state.create_api_key(Some(end), &text, world.now);
    world.commit();
    text
}

/// Registers a new machine before and after a restart; both answers are the same.
fn registered(world: &mut World, number: u8, key: &str) -> String {
    let before = world.register(&mut Machine::new(number), key);
    world.restart();
    assert_eq!(world.register(&mut Machine::new(number), key), before);
    before
}

#[test]
fn an_expired_auth_key_registers_no_node_even_after_a_restart() {
    for lifetime in [None, Some(HOUR)] {
        let mut world = World::new();
        let expires = lifetime.map(|lifetime| world.now.after(lifetime));
        let new = NewKey { user: Some(world.user), reusable: true, expires, ..NewKey::default() };
        let key = world.auth_key(new);
        assert_eq!(registered(&mut world, 1, &key), "");
        let id = world.state.keys().next().unwrap().id;
        world.state.expire_key(id, world.now).unwrap();
        world.commit();
        assert_eq!(world.state.keys().next().unwrap().expires, Some(world.now));
        assert_eq!(registered(&mut world, 2, &key), "the auth key has expired");
        assert_eq!(world.state.nodes().count(), 1);
    }
}

#[test]
fn a_deleted_auth_key_registers_no_node_even_after_a_restart() {
    let mut world = World::new();
    let key = world.reusable();
    let id = world.state.keys().next().unwrap().id;
    world.state.delete_key(id).unwrap();
    world.commit();
    assert_eq!(registered(&mut world, 1, &key), "invalid auth key");
    assert_eq!(world.state.expire_key(id, world.now), Err(Refusal::NoKey(id)));
}

#[test]
fn auth_keys_of_a_deleted_user_register_no_node_even_after_a_restart() {
    let mut world = World::new();
    let (own, bens) = (world.reusable(), key_of_ben(&mut world));
    let ben = world.state.find_user("ben").unwrap().id;
    world.state.delete_user(ben).unwrap();
    world.commit();
    assert_eq!(registered(&mut world, 1, &bens), "invalid auth key");
    assert_eq!(registered(&mut world, 2, &own), "", "other users keep their keys");
    assert!(world.state.find_user("ben").is_err());
    assert_eq!(world.state.keys().count(), 1);
}

#[test]
fn an_expired_or_deleted_api_key_is_invalid_even_after_a_restart() {
    let mut world = World::new();
    let text = api_key(&mut world);
    world.restart();
    let prefix =
        world.state.find_valid_api_key(&text, world.now).expect("a valid key").prefix.clone();
    world.state.expire_api_key(&prefix, world.now).unwrap();
    world.commit();
    world.restart();
    assert_eq!(world.state.find_valid_api_key(&text, world.now), None);
    let text = api_key(&mut world);
    let id = world.state.find_valid_api_key(&text, world.now).expect("a valid key").id;
    world.state.delete_api_key(&id.to_string()).unwrap();
    world.commit();
    world.restart();
    assert_eq!(world.state.find_valid_api_key(&text, world.now), None);
    assert_eq!(world.state.api_keys().count(), 1);
}
