//! Several servers of one network: they apply each other's writes, and undo changes that were not stored.

use std::{collections::BTreeSet, time::Duration};

use coordinator::{
    MapRequest, NewKey, PollResult, Session, State,
    object::{Kind, Stored},
    secret,
};
use serde_json::{Value, json};

use crate::{
    policy::{key_of, policy, save},
    simulation::{Machine, World, stored_objects},
};

/// Another server with the content of the store.
fn other(world: &World) -> State {
    let objects: Vec<Stored> = world.store.values().cloned().collect();
    State::load(world.state.settings().clone(), &objects, (world.version, 7), world.now).unwrap()
}

/// Reads the writes after this version.
fn read_on(world: &World, other: &mut State, version: i64) {
    other.apply(&world.since(version), world.now).unwrap();
    other.publish(world.version, world.now);
}

/// The first frame of a machine's stream.
fn first_frame(state: &State, world: &World, machine: &Machine, position: (String, i64)) -> Value {
    let (previous_stream, previous_seq) = position;
    let request = MapRequest { previous_stream, previous_seq, ..MapRequest::default() };
    let mut session = Session::new(machine.id, machine.key).resumable("net", &request);
    match session.poll(state, world.now) {
        PollResult::Frame(frame) => serde_json::from_str(&frame.text()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stream_resumes_at_another_server_with_the_changes() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let others: Vec<Machine> = (1..=9).map(|number| world.join(number, &key)).collect();
    world.disconnect(&mut sleeper);
    let (mut other, version) = (other(&world), world.version);
    world.pass(Duration::from_secs(60));
    world.resume(&mut sleeper, "net");
    world.send_update(&others[2], json!({ "Endpoints": ["192.0.2.98:1"] }));
    while world.poll(&mut sleeper) {}
    let position = sleeper.position.clone();
    world.disconnect(&mut sleeper);
    world.send_update(&others[3], json!({ "Endpoints": ["192.0.2.99:1"] }));
    let early = first_frame(&other, &world, &sleeper, position.clone());
    assert!(early.get("Peers").is_some(), "the server does not know what its client has");
    read_on(&world, &mut other, version);
    let frame = first_frame(&other, &world, &sleeper, position.clone());
    assert_eq!(frame["MapSessionHandle"], json!(position.0));
    assert!(frame.get("Peers").is_none(), "{frame}");
    assert!(
        frame.get("DERPMap").is_some(),
        "the other server may have another configuration: {frame}"
    );
    let changed = frame["PeersChanged"].as_array().unwrap();
    let moved = changed.iter().find(|peer| peer["ID"] == others[3].id.0).unwrap();
    assert_eq!(moved["Endpoints"], json!(["192.0.2.99:1"]));
    // The log does not have a node that went offline before the log began.
    let patches = frame["PeersChangedPatch"].as_array().unwrap();
    let patch = patches.iter().find(|patch| patch["NodeID"] == others[0].id.0).unwrap();
    assert_eq!(patch["Online"], json!(false));
    // A new server may not know which nodes disconnected.
    let new = self::other(&world);
    assert!(first_frame(&new, &world, &sleeper, position).get("Peers").is_some());
}

/// The server reads at once the changes that its client received one after the other.
#[test]
fn a_node_changed_and_restored_between_two_reads_is_sent() {
    let mut world = World::new();
    let key = world.reusable();
    let mut client = world.join(200, &key);
    let moved = world.join(1, &key);
    world.disconnect(&mut client);
    let (mut other, version) = (other(&world), world.version);
    world.pass(Duration::from_secs(60));
    let brief = world.join(2, &key);
    world.send_update(&moved, json!({ "Endpoints": ["192.0.2.98:1"] }));
    world.resume(&mut client, "net");
    assert!(client.peer(&brief).is_object());
    world.send_update(&moved, json!({ "Endpoints": ["192.0.2.1:41641"] }));
    world.state.delete_node(brief.id).unwrap();
    world.commit();
    let mut follower = Session::new(client.id, client.key);
    assert!(matches!(follower.poll(&other, world.now), PollResult::Frame(_)));
    read_on(&world, &mut other, version);
    let frame = first_frame(&other, &world, &client, client.position.clone());
    assert_eq!(frame["MapSessionHandle"], json!(client.position.0), "the stream is resumed");
    assert_eq!(frame["PeersRemoved"], json!([brief.id]));
    assert_eq!(frame["PeersChanged"][0]["Endpoints"], json!(["192.0.2.1:41641"]));
    // A client of this server received neither change.
    assert!(matches!(follower.poll(&other, world.now), PollResult::Nothing));
}

#[test]
fn a_node_is_online_while_any_server_has_its_stream() {
    let mut world = World::new();
    let key = world.reusable();
    let mut machine = world.join(1, &key);
    let id = machine.id;
    let is_online = |world: &World| world.state.node(id).unwrap().online;
    world.state.set_server_connections(5, BTreeSet::from([id]), world.now);
    world.disconnect(&mut machine);
    world.pass(Duration::from_secs(60));
    assert!(is_online(&world));
    // The server dies. Its node has been disconnected for the longest possible time by then.
    let since = world.now;
    world.pass(Duration::from_secs(10));
    world.state.expire_server_connections(5, since);
    world.pass(Duration::ZERO);
    assert!(!is_online(&world));
    world.state.set_server_connections(6, BTreeSet::from([id]), world.now);
    assert!(is_online(&world));
    world.state.set_server_connections(6, BTreeSet::new(), world.now);
    assert!(is_online(&world), "it may reconnect");
    world.pass(Duration::from_secs(11));
    assert!(!is_online(&world));
}

#[test]
fn an_ephemeral_node_of_a_dead_server_is_deleted_after_the_usual_time() {
    let mut world = World::new();
    let new = NewKey { user: Some(world.user), ephemeral: true, ..NewKey::default() };
    let key = world.auth_key(new);
    let mut machine = world.join(1, &key);
    let (id, patience) = (machine.id, world.state.settings().ephemeral_after);
    world.state.set_server_connections(5, BTreeSet::from([id]), world.now);
    world.disconnect(&mut machine);
    world.pass(patience * 3);
    world.state.expire_server_connections(5, world.now);
    world.pass(patience - Duration::from_secs(1));
    assert!(world.state.node(id).is_some());
    world.pass(Duration::from_secs(2));
    assert!(world.state.node(id).is_none());
}

#[test]
fn all_servers_have_the_same_primary_router() {
    let mut world = World::new();
    let key = world.reusable();
    let mut routers: Vec<Machine> = (1..=2)
        .map(|number| {
            let mut machine = Machine::new(number);
            machine.hostinfo["RoutableIPs"] = json!(["10.0.0.0/8"]);
            assert_eq!(world.register(&mut machine, &key), "");
            let nets = ["10.0.0.0/8".parse().unwrap()];
            world.state.approve_routes(machine.id, &nets, world.now).unwrap();
            world.commit();
            machine
        })
        .collect();
    world.follow(&mut routers[1]);
    let primary = |state: &State| -> Vec<i64> {
        let has = state.nodes().filter(|view| !view.node.primaries.is_empty());
        has.map(|view| view.node.id.0).collect()
    };
    assert_eq!(primary(&world.state), [routers[1].id.0]);
    // Another server sees no connected node, and does not choose again.
    let (mut other, version) = (other(&world), world.version);
    assert_eq!(primary(&other), [routers[1].id.0]);
    other.set_server_connections(5, BTreeSet::from([routers[1].id]), world.now);
    assert!(other.take_writes().is_empty());
    world.follow(&mut routers[0]);
    world.disconnect(&mut routers[1]);
    world.pass(Duration::from_secs(11));
    assert_eq!(primary(&world.state), [routers[0].id.0]);
    read_on(&world, &mut other, version);
    assert_eq!(primary(&other), [routers[0].id.0]);
}

#[test]
fn changes_that_were_not_stored_are_undone_and_never_sent() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let mut machine = world.join(2, &key);
    let once = NewKey { user: Some(world.user), ..NewKey::default() };
    let once = world.auth_key(once);
    while world.poll(&mut watcher) {}
    let before = (watcher.peers.clone(), stored_objects(&world.state));
    world.state.rename_node(machine.id, "other", world.now).unwrap();
    world.state.delete_node(machine.id).unwrap();
    let mut new = Machine::new(3);
    let text = json!({ "Auth": { "AuthKey": once } });
    register_without_storing(&mut world, &mut new, &text);
    let user = world.state.users().next().unwrap().id;
    world.state.rename_user(user, "bert", world.now).unwrap();
    assert!(world.state.take_writes().len() >= 4);
    world.state.undo(world.now);
    assert!(world.state.take_writes().is_empty());
    world.commit();
    while world.poll(&mut watcher) {}
    assert_eq!((watcher.peers.clone(), stored_objects(&world.state)), before);
    // The node still has its stream, and the key is not used.
    assert!(!machine.has_ended);
    while world.poll(&mut machine) {}
    assert!(!machine.has_ended);
    assert_eq!(world.register(&mut new, &once), "");
    world.send_update(&new, json!({ "Endpoints": ["192.0.2.3:1"] }));
    while world.poll(&mut watcher) {}
    assert!(watcher.peer(&new).is_object(), "it is sent when it is a node");
}

fn register_without_storing(world: &mut World, machine: &mut Machine, fields: &Value) {
    let mut request = json!({
        "Version": 131, "NodeKey": machine.key, "Hostinfo": machine.hostinfo,
    });
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let request = coordinator::RegisterRequest::read(request.to_string().as_bytes()).unwrap();
    let (machine, number) = (machine.machine, "1");
    let command =
        coordinator::RegisterCommand { machine, request: &request, number, url: "", from: None };
    world.state.register(command, world.now);
}

#[test]
fn objects_that_the_database_lost_are_removed() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let backup = world.store.clone();
    let lost = world.join(2, &key);
    while world.poll(&mut watcher) {}
    assert!(watcher.peer(&lost).is_object());
    world.store = backup;
    let objects = world.store.values().cloned().collect();
    world.state.reconcile(objects, 0, world.now).unwrap();
    world.commit();
    while world.poll(&mut watcher) {}
    assert!(watcher.peer(&lost).is_null());
    assert!(world.state.node(lost.id).is_none());
    let none = Stored { kind: Kind::Node, id: 1, body: Some("{".into()) };
    assert!(world.state.apply(&[none], world.now).is_err());
    assert!(world.state.node(watcher.id).is_some(), "an unreadable object changes nothing");
}

/// A standby database without the last writes takes over, and the same number of versions is written again.
#[test]
fn a_stream_does_not_resume_at_a_reused_version() {
    let mut world = World::new();
    let key = world.reusable();
    let mut sleeper = world.join(200, &key);
    let mover = world.join(1, &key);
    world.disconnect(&mut sleeper);
    let mut other = other(&world);
    let backup: Vec<Stored> = world.store.values().cloned().collect();
    let mut version = world.version;
    world.pass(Duration::from_secs(60));
    world.resume(&mut sleeper, "net");
    let lost = world.join(9, &key);
    while world.poll(&mut sleeper) {}
    assert!(sleeper.peer(&lost).is_object());
    let position = sleeper.position.clone();
    let received = world.version;

    other.reconcile(backup.clone(), 2, world.now).unwrap();
    other.publish(version, world.now);
    let mut new = State::load(Default::default(), &backup, (version, 3), world.now).unwrap();
    new = new.with_epoch(2);
    while version <= received {
        version += 1;
        for server in [&mut other, &mut new] {
            move_to(server, &mover, version, &world);
        }
    }
    world.pass(Duration::from_secs(60));
    for server in [&other, &new] {
        let frame = first_frame(server, &world, &sleeper, position.clone());
        assert!(frame.get("Peers").is_some(), "it would keep the node that was lost: {frame}");
        assert!(!frame.to_string().contains("host-9"));
    }
    // A stream at a reused version resumes at either server.
    let frame = first_frame(&other, &world, &sleeper, (String::new(), 0));
    let name = |of: &Value| of["MapSessionHandle"].as_str().unwrap().to_owned();
    let position = (name(&frame), frame["Seq"].as_i64().unwrap());
    for server in [&mut other, &mut new] {
        move_to(server, &mover, version + 1, &world);
    }
    for server in [&other, &new] {
        let frame = first_frame(server, &world, &sleeper, position.clone());
        assert!(frame.get("Peers").is_none(), "{frame}");
        assert!(frame["PeersChanged"].to_string().contains(&format!("192.0.2.1:{}", version + 1)));
    }
}

fn move_to(server: &mut State, machine: &Machine, version: i64, world: &World) {
    let endpoint = format!("192.0.2.1:{version}").parse().unwrap();
    let request = MapRequest { endpoints: vec![endpoint], ..MapRequest::default() };
    server.apply_map_request(machine.id, &request, world.now);
    server.take_writes();
    server.publish(version, world.now);
}

/// After a change at one server, another server has the same rights as a server that starts.
#[test]
fn changed_rights_apply_at_other_servers_too() {
    let mut world = World::new();
    let ben = world.add_user("ben");
    let (annas, bens) = (world.reusable(), key_of(&mut world, ben));
    let rules = json!({ "acls": [
        { "action": "accept", "src": ["ben@"], "dst": ["tag:db:22"] },
        { "action": "accept", "src": ["eve@"], "dst": ["tag:web:22"] },
        { "action": "accept", "src": ["autogroup:owner"], "dst": ["tag:gate:22"] },
    ] });
    save(&mut world, &policy(&rules));
    let bases = [1, 2, 3].map(|number| world.join(number, &annas));
    let client = world.join(9, &bens);
    let tag = |world: &mut World, at: usize, tag: &str| {
        world.state.tag_node(bases[at].id, &[tag.to_owned()], world.now).unwrap();
    };
    let changes: [&dyn Fn(&mut World); 5] = [
        &|world| tag(world, 0, "tag:db"),
        &|world| tag(world, 1, "tag:web"),
        &|world| tag(world, 2, "tag:gate"),
        &|world| drop(world.state.rename_user(ben, "carl", world.now).unwrap()),
        &|world| drop(world.state.make_owner(ben).unwrap()),
    ];
    let (mut server, mut version) = (other(&world), world.version);
    let peers = |state: &State, world: &World| {
        let frame = first_frame(state, world, &client, (String::new(), 0));
        frame["Peers"].as_array().map_or(0, Vec::len)
    };
    // The compiled policy must not be reused.
    assert_eq!(peers(&server, &world), 0);
    for (change, expected) in changes.iter().zip([1, 1, 1, 1, 2]) {
        change(&mut world);
        world.commit();
        read_on(&world, &mut server, version);
        version = world.version;
        assert_eq!(peers(&server, &world), expected);
        assert_eq!(peers(&other(&world), &world), expected);
    }
    assert!(server.policy().unwrap().text.contains("\"carl@\""), "the rename is in the policy");
}

#[test]
fn an_api_key_deleted_at_one_server_is_invalid_at_others() {
    let mut world = World::new();
    let text = secret::write_api(&[7; 38]);
    world.state.create_api_key(None, &text, world.now);
    world.commit();
    let (mut server, version) = (other(&world), world.version);
    let id = server.find_valid_api_key(&text, world.now).unwrap().id;
    world.state.delete_api_key(&id.to_string()).unwrap();
    world.commit();
    read_on(&world, &mut server, version);
    assert_eq!(server.find_valid_api_key(&text, world.now), None);
    assert_eq!(stored_objects(&server), stored_objects(&world.state));
}
