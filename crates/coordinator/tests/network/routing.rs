//! Subnet routes and exit nodes: approval, and the choice of the primary router.

use std::time::Duration;

use serde_json::json;

use crate::simulation::{Machine, World};

const NET: &str = "10.0.0.0/24";

/// A machine that advertises networks.
fn router(world: &mut World, number: u8, key: &str, nets: &[&str]) -> Machine {
    let mut machine = Machine::new(number);
    machine.hostinfo["RoutableIPs"] = json!(nets);
    assert_eq!(world.register(&mut machine, key), "");
    world.send_update(&machine, json!({}));
    world.follow(&mut machine);
    machine
}

fn approve(world: &mut World, machine: &Machine, nets: &[&str]) {
    let nets: Vec<_> = nets.iter().map(|net| net.parse().unwrap()).collect();
    world.state.approve_routes(machine.id, &nets, world.now).unwrap();
    world.commit();
}

fn routes(watcher: &mut Machine, world: &mut World, router: &Machine) -> (bool, bool) {
    while world.poll(watcher) {}
    let peer = watcher.peer(router);
    let has = |field: &str| peer[field].as_array().is_some_and(|nets| nets.contains(&json!(NET)));
    (has("AllowedIPs"), has("PrimaryRoutes"))
}

#[test]
fn a_network_is_routed_when_it_is_advertised_and_approved() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let mut gate = router(&mut world, 2, &key, &[NET]);
    assert_eq!(routes(&mut watcher, &mut world, &gate), (false, false));
    approve(&mut world, &gate, &[NET, "10.9.0.0/16"]);
    assert_eq!(routes(&mut watcher, &mut world, &gate), (true, true));
    world.poll(&mut gate);
    assert_eq!(gate.own["AllowedIPs"].as_array().unwrap().len(), 3);
    gate.hostinfo["RoutableIPs"] = json!([]);
    world.send_update(&gate, json!({}));
    assert_eq!(routes(&mut watcher, &mut world, &gate), (false, false));
    gate.hostinfo["RoutableIPs"] = json!([NET]);
    world.send_update(&gate, json!({}));
    assert_eq!(routes(&mut watcher, &mut world, &gate), (true, true), "it stays approved");
    approve(&mut world, &gate, &[]);
    assert_eq!(routes(&mut watcher, &mut world, &gate), (false, false), "until that is withdrawn");
}

#[test]
fn of_two_routers_the_connected_one_becomes_and_stays_primary() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let mut first = router(&mut world, 2, &key, &[NET]);
    let mut second = router(&mut world, 3, &key, &[NET]);
    for gate in [&first, &second] {
        approve(&mut world, gate, &[NET]);
    }
    assert_eq!(routes(&mut watcher, &mut world, &first), (true, true));
    assert_eq!(routes(&mut watcher, &mut world, &second), (false, false));
    world.poll(&mut second);
    assert!(second.own["AllowedIPs"].as_array().unwrap().contains(&json!(NET)), "a standby");
    world.disconnect(&mut first);
    world.pass(Duration::from_secs(11));
    assert_eq!(routes(&mut watcher, &mut world, &first), (false, false));
    assert_eq!(routes(&mut watcher, &mut world, &second), (true, true));
    world.follow(&mut first);
    assert_eq!(routes(&mut watcher, &mut world, &second), (true, true), "the primary stays");
    world.disconnect(&mut first);
    world.disconnect(&mut second);
    world.pass(Duration::from_secs(11));
    assert_eq!(routes(&mut watcher, &mut world, &second), (true, true), "no router is better");
    world.follow(&mut first);
    assert_eq!(routes(&mut watcher, &mut world, &first), (true, true));
    world.state.delete_node(first.id).unwrap();
    world.commit();
    assert_eq!(routes(&mut watcher, &mut world, &second), (true, true));
}

#[test]
fn of_two_connected_routers_the_responding_one_becomes_and_stays_primary() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let mut first = router(&mut world, 2, &key, &[NET]);
    assert!(world.state.contested_routers().is_empty(), "there is no standby");
    let second = router(&mut world, 3, &key, &[NET]);
    for gate in [&first, &second] {
        approve(&mut world, gate, &[NET]);
    }
    assert_eq!(world.state.contested_routers().len(), 2);
    let mut note = |world: &mut World, answers: [bool; 2]| {
        world.state.record_responses(&[(first.id, answers[0]), (second.id, answers[1])]);
        world.commit();
        [&first, &second].map(|gate| routes(&mut watcher, world, gate).1)
    };
    assert_eq!(note(&mut world, [true, true]), [true, false]);
    assert_eq!(note(&mut world, [false, true]), [false, true]);
    assert_eq!(note(&mut world, [true, true]), [false, true], "the primary stays");
    assert_eq!(note(&mut world, [false, false]), [false, true], "no router is better");
    assert_eq!(note(&mut world, [true, false]), [true, false]);
    assert_eq!(note(&mut world, [false, true]), [false, true]);
    world.disconnect(&mut first);
    world.follow(&mut first);
    world.state.record_responses(&[(second.id, false)]);
    world.commit();
    assert_eq!(routes(&mut watcher, &mut world, &first), (true, true), "it reconnected");
}

#[test]
fn probers_are_nodes_that_see_a_contested_router_and_its_rival() {
    let mut world = World::new();
    let key = world.reusable();
    let client = world.join(1, &key);
    let gates = [2, 3].map(|number| router(&mut world, number, &key, &[NET]));
    let all = |world: &World| world.state.probed_routers(|_| true);
    assert!(all(&world).is_empty(), "no network is contested");
    for gate in &gates {
        approve(&mut world, gate, &[NET]);
    }
    let address = |world: &World, of: &Machine| world.state.node(of.id).unwrap().node.v4;
    for (own, rival) in [(0, 1), (1, 0)] {
        let [gate, rival] = [own, rival].map(|at: usize| &gates[at]);
        let watched = all(&world).into_iter().find(|one| one.router == gate.id).unwrap();
        assert_eq!(watched.address, address(&world, gate));
        let controls = |of: &Machine| {
            let witness = watched.probers.iter().find(|one| one.id == of.id).unwrap();
            witness.controls.clone()
        };
        assert_eq!(watched.probers.len(), 2);
        assert_eq!(controls(&client), [address(&world, rival)]);
        assert_eq!(controls(rival), [address(&world, &client)]);
    }
    let here = world.state.probed_routers(|id| id != client.id && id != gates[0].id);
    assert_eq!(here.len(), 1, "the other server probes the rest");
    assert!(here[0].router == gates[1].id && here[0].probers.is_empty());

    let mut phone = Machine::new(4);
    phone.hostinfo["OS"] = json!("iOS");
    assert_eq!(world.register(&mut phone, &key), "");
    world.send_update(&phone, json!({}));
    world.follow(&mut phone);
    assert!(all(&world).iter().all(|one| one.probers.len() == 2), "a probe would wake the phone");
    crate::policy::save(&mut world, &json!({ "acls": [] }));
    assert!(all(&world).iter().all(|one| one.probers.is_empty()), "no node sees another");
}

#[test]
fn exit_routes_stay_with_all_approved_routers() {
    let mut world = World::new();
    let key = world.reusable();
    let mut watcher = world.join(1, &key);
    let exits = ["0.0.0.0/0", "::/0"];
    let gates = [2, 3].map(|number| router(&mut world, number, &key, &exits));
    for gate in &gates {
        approve(&mut world, gate, &["0.0.0.0/0"]);
    }
    while world.poll(&mut watcher) {}
    for gate in &gates {
        let peer = watcher.peer(gate);
        let allowed = peer["AllowedIPs"].as_array().unwrap();
        assert!(exits.iter().all(|exit| allowed.contains(&json!(exit))), "{peer}");
        assert!(peer.get("PrimaryRoutes").is_none());
    }
}
