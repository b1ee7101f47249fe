use super::*;
use crate::{RegisterRequest, Settings, State, Time, object::KeyId, secret::Hash};

fn user(id: i64, name: &str) -> User {
    User { id: UserId(id), name: name.into(), ..User::default() }
}

fn node(id: i64, name: &str) -> Node {
    serde_json::from_value(serde_json::json!({
        "id": id, "machine": format!("mkey:{id:064x}"), "key": format!("nodekey:{id:064x}"),
        "disco": format!("discokey:{id:064x}"), "user": 1, "name": name, "v4": "0.0.0.0",
        "v6": "::", "hostinfo": {}, "auth_key": 9, "expires": null, "created": 0,
        "last_seen": null,
    }))
    .unwrap()
}

fn import() -> Import {
    let mut import = Import::new(Prefixes::default());
    import.user(user(1, "anna")).unwrap();
    import
}

#[test]
fn objects_that_do_not_fit_are_skipped_and_the_rest_is_valid() {
    let mut import = import();
    assert_eq!(import.user(user(1, "bert")), Err(SkipReason::InvalidNumber));
    let v4 = |last| Some(Ipv4Addr::new(100, 64, 0, last));
    let v6 = |last: u16| Some(Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, 0, last));
    import.node(node(5, "a"), v4(5), v6(5)).unwrap();
    assert_eq!(import.node(node(5, "b"), v4(6), v6(6)), Err(SkipReason::InvalidNumber));
    let stranger = Node { user: Some(UserId(7)), ..node(6, "b") };
    assert_eq!(import.node(stranger, v4(6), v6(6)), Err(SkipReason::NoUser(UserId(7))));
    let same_key = Node { key: node(5, "a").key, ..node(6, "b") };
    assert!(matches!(import.node(same_key, v4(6), v6(6)), Err(SkipReason::Key(_))));
    // A node with an address of one family gets the matching one of the other.
    import.node(node(6, "b"), v4(6), None).unwrap();
    import.reserve_numbers(Kind::Node, 40);
    let (objects, skipped) = import.finish();
    assert!(skipped.is_empty(), "{skipped:?}");
    let mut state = State::load(Settings::default(), &objects, (1, 0), Time(0)).unwrap();
    let ids: Vec<i64> = state.nodes().map(|view| view.node.id.0).collect();
    assert_eq!(ids, [5, 6]);
    let half = state.node(NodeId(6)).unwrap().node;
    assert_eq!((half.v4, half.v6.is_unspecified()), (v4(6).unwrap(), false));
    // Its pre-auth key does not exist.
    assert_eq!(half.auth_key, None);
    assert_eq!(state.next_number(Kind::Node), 41);
}

#[test]
fn a_key_with_a_bcrypt_hash_is_valid_after_verification() {
    let bcrypt = format!("$2a$10${}", "b".repeat(53));
    let text = format!("hskey-auth-abcdefghijkl-{}", "x".repeat(64));
    let mut import = import();
    import
        .key(PreAuthKey {
            id: KeyId(3),
            user: Some(UserId(1)),
            prefix: "abcdefghijkl".into(),
            hash: Hash::of_bcrypt(&bcrypt).unwrap(),
            reusable: false,
            ephemeral: false,
            used: false,
            expires: None,
            tags: Vec::new(),
            created: Time(0),
        })
        .unwrap();
    let mut state = State::load(Settings::default(), &import.finish().0, (1, 0), Time(0)).unwrap();
    let command = |text: &str| {
        let request = serde_json::json!({"Auth": {"AuthKey": text}}).to_string();
        RegisterRequest::read(request.as_bytes()).unwrap()
    };
    let unverified_key = state.unverified_key(&command(&text), Time(1)).unwrap();
    assert_eq!((&unverified_key.bcrypt, unverified_key.secret.len()), (&bcrypt, 64));
    state.confirm_key(&unverified_key);
    assert!(state.unverified_key(&command(&text), Time(1)).is_none());
    let stored = state.take_writes();
    assert!(stored[0].body.as_ref().is_some_and(|body| !body.contains("$2a$")));
}

/// The state of a network with these objects.
fn network(objects: &[Stored]) -> State {
    State::load(Settings::default(), objects, (1, 0), Time(0)).unwrap()
}

fn named(was: &str, is: &str) -> Result<ImportOutcome, SkipReason> {
    Ok(ImportOutcome::New(changed_name(was.into(), is)))
}

#[test]
fn invalid_names_of_headscale_become_labels_and_are_reported() {
    let mut import = import();
    for (id, name, expected) in [
        (1, "desk", "desk"),
        (2, "MacBook-Pro", "macbook-pro"),
        (3, "web.prod", "web-prod"),
        (4, "build_box", "build-box"),
        (5, "server--01", "server--01"),
        (6, "xn--mnchen-3ya", "xn--mnchen-3ya"),
        (7, "Desk", "desk-1"),
        (8, "desk", "desk-2"),
        (9, "北京", "node"),
        (10, "", "node-1"),
    ] {
        assert_eq!(import.node(node(id, name), None, None), named(name, expected));
    }
    let state = network(&import.finish().0);
    assert_eq!(state.node(NodeId(7)).unwrap().node.name, "desk-1");
}

#[test]
fn users_with_an_empty_or_used_name_keep_their_machines() {
    let mut import = import();
    let mut other = user(2, "anna");
    other.email = "anna@net.test".into();
    assert_eq!(import.user(other), named("anna", "anna@net.test"));
    assert_eq!(import.user(user(3, "anna")), named("anna", "anna-3"));
    assert_eq!(import.user(user(4, "")), named("", "user-4"));
    assert_eq!(import.user(user(5, "user-4")), named("user-4", "user-4-5"));
    assert_eq!(import.user(user(6, "lm @ änna")), named("lm @ änna", "lm @ änna"));
    let own = Node { user: Some(UserId(4)), ..node(1, "a") };
    import.node(own, None, None).unwrap();
    assert_eq!(network(&import.finish().0).nodes().count(), 1);
}

#[test]
fn a_used_address_is_replaced_and_reported() {
    let mut import = import();
    let v4 = Ipv4Addr::new(100, 64, 0, 1);
    import.node(node(1, "a"), Some(v4), None).unwrap();
    let changed = import.node(node(2, "b"), Some(v4), None);
    assert_eq!(changed, Ok(ImportOutcome::New(vec![Adjustment::Address(v4.into())])));
    let state = network(&import.finish().0);
    let [first, second] = [1, 2].map(|id| state.node(NodeId(id)).unwrap().node.v4);
    assert!(first == v4 && second != v4, "{first} {second}");
}

#[test]
fn tags_of_headscale_are_not_changed() {
    let mut import = import();
    for (id, tag) in [(1, "tag:web_server"), (2, "tag:ci.runner"), (3, "tag:1"), (4, "tag:Web")] {
        let tagged = Node { user: None, tags: vec![tag.into()], ..node(id, "a") };
        import.node(tagged, None, None).unwrap();
    }
    for (id, tag) in [(5, "web"), (6, "tag:"), (7, "tag:a b"), (8, "tag:-a"), (9, "tag:a\n")] {
        let tagged = Node { user: None, tags: vec![tag.into()], ..node(id, "a") };
        assert_eq!(import.node(tagged, None, None), Err(SkipReason::Tag(tag.into())));
    }
    let state = network(&import.finish().0);
    assert_eq!(state.node(NodeId(1)).unwrap().node.tags, ["tag:web_server"]);
}

#[test]
fn a_second_import_adds_skipped_objects_but_no_deleted_ones() {
    let mut first = import();
    first.user(user(2, "bert")).unwrap();
    first.node(node(1, "a"), None, None).unwrap();
    first.node(node(2, "b"), None, None).unwrap();
    first.leave_out(Kind::Node, 3);
    first.reserve_numbers(Kind::Node, 3);
    let mut stored = first.finish().0;
    let deleted = Stored { kind: Kind::Node, id: 2, body: None };
    stored.retain(|object| (object.kind, object.id) != (Kind::Node, 2));
    stored.push(deleted);
    assert_eq!(network(&stored).next_number(Kind::Node), 5, "3 was given, and 4 marks that");

    let mut second = Import::onto(Prefixes::default(), &stored).unwrap();
    assert_eq!(second.user(user(1, "anna")), Ok(ImportOutcome::AlreadyPresent));
    assert_eq!(second.node(node(1, "renamed"), None, None), Ok(ImportOutcome::AlreadyPresent));
    assert_eq!(second.node(node(2, "b"), None, None), Err(SkipReason::Deleted));
    assert_eq!(second.node(node(3, "a"), None, None), named("a", "a-1"));
    let other = Node { machine: node(9, "x").machine, ..node(1, "x") };
    assert_eq!(second.node(other, None, None), Err(SkipReason::InvalidNumber));
    let (added, _) = second.finish();
    assert_eq!(
        added.iter().map(|object| (object.kind, object.id)).collect::<Vec<_>>(),
        [(Kind::Node, 3)]
    );
    stored.extend(added);
    let mut state = network(&stored);
    let ids: Vec<i64> = state.nodes().map(|view| view.node.id.0).collect();
    assert_eq!((ids, state.next_number(Kind::Node)), (vec![1, 3], 5));
}
