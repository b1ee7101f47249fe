//! Explanations why one machine does not reach another.

use std::time::Duration;

use policy::Policy;
use serde_json::json;

use crate::simulation::{Machine, World};

/// The failed condition, if there is one.
fn obstacle(world: &World, from: &str, to: &str, port: Option<u16>) -> Option<String> {
    let steps = world.state.check_reachability(from, to, port, world.now);
    let (last, before) = steps.split_last().unwrap();
    assert!(before.iter().all(|step| step.is_met), "{steps:?}");
    (!last.is_met).then(|| last.question.clone())
}

#[test]
fn the_first_failed_condition_is_named() {
    let mut world = World::new();
    let key = world.reusable();
    let mut laptop = world.join(1, &key);
    let mut gate = Machine::new(2);
    gate.hostinfo["RoutableIPs"] = json!(["10.0.0.0/24"]);
    assert_eq!(world.register(&mut gate, &key), "");
    world.send_update(&gate, json!({}));
    world.follow(&mut gate);
    let (from, to) = (world.name(&laptop), world.name(&gate));
    assert_eq!(obstacle(&world, "nobody", &to, None).unwrap(), "nobody is in the network");
    assert_eq!(obstacle(&world, &from, "10.9.9.9", None).unwrap(), "10.9.9.9 is in the network");
    assert_eq!(obstacle(&world, &from, &to, None), None);
    let behind = "10.0.0.7";
    let approved = "The route to 10.0.0.0/24 is approved";
    assert_eq!(obstacle(&world, &from, behind, None).unwrap(), approved);
    world.state.approve_routes(gate.id, &["10.0.0.0/24".parse().unwrap()], world.now).unwrap();
    world.commit();
    assert_eq!(obstacle(&world, &from, behind, Some(22)), None);
    let text = format!(
        r#"{{ "acls": [{{ "action": "accept", "src": ["*"], "dst": ["{}:22"] }}] }}"#,
        world.address(&gate)
    );
    let policy = Policy::parse(&text).unwrap();
    world.state.save_policy(&text, &policy, world.now).unwrap();
    world.commit();
    assert_eq!(obstacle(&world, &from, &to, Some(22)), None);
    let denied = obstacle(&world, &from, &to, Some(23));
    assert_eq!(denied.unwrap(), "The policy allows it on port 23");
    world.disconnect(&mut laptop);
    world.pass(Duration::from_secs(11));
    assert_eq!(obstacle(&world, &from, &to, None).unwrap(), format!("{from} is online"));
    world.state.set_expiry(laptop.id, Some(world.now), world.now).unwrap();
    let expired = obstacle(&world, &laptop.id.to_string(), &to, None);
    assert_eq!(expired.unwrap(), format!("The key of {from} is valid"));
}
