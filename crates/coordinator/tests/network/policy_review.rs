//! Effects of saving a policy: approved routes, and unsupported parts.

use coordinator::PolicyReview;
use policy::{Policy, Reason};
use serde_json::{Value, json};

use crate::{
    policy::{policy, save, tagged},
    simulation::{Machine, World},
};

fn review(world: &World, text: &Value) -> PolicyReview {
    let text = text.to_string();
    world.state.review_policy(&text, &Policy::parse(&text).unwrap()).unwrap()
}

fn lines(review: &PolicyReview) -> Vec<String> {
    review.after.difference(&review.before, 100).lines.iter().map(ToString::to_string).collect()
}

/// A router that advertises a network and the default routes.
fn router(world: &mut World) -> Machine {
    let gate = tagged(world, "tag:gate");
    let mut router = Machine::new(2);
    router.hostinfo["RoutableIPs"] = json!(["10.0.0.0/24", "10.9.0.0/24", "0.0.0.0/0", "::/0"]);
    assert_eq!(world.register(&mut router, &gate), "");
    router
}

#[test]
fn a_review_lists_approved_routes_and_the_nodes_that_reach_them() {
    let mut world = World::new();
    let key = world.reusable();
    let rules = json!([{ "action": "accept", "src": ["anna@"], "dst": ["*:*"] }]);
    save(&mut world, &policy(&json!({ "acls": rules })));
    let laptop = world.join(1, &key);
    let router = router(&mut world);
    let approvers = json!({ "routes": { "10.0.0.0/16": ["tag:gate"] }, "exitNode": ["tag:gate"] });
    let text = policy(&json!({ "acls": rules, "autoApprovers": approvers }));
    let reviewed = review(&world, &text);
    let name = world.name(&router);
    let routes: Vec<(String, String)> =
        reviewed.routes.iter().map(|(name, net)| (name.clone(), net.to_string())).collect();
    let wanted = ["0.0.0.0/0", "10.0.0.0/24", "::/0"].map(|net| (name.clone(), net.to_owned()));
    assert_eq!(routes, wanted);
    let laptop = world.name(&laptop);
    let wanted = ["10.0.0.0/24", "internet"].map(|to| format!("+ {laptop} -> {to}:*"));
    assert_eq!(lines(&reviewed), wanted);
    assert!(world.state.node(router.id).unwrap().node.approved.is_empty(), "nothing was saved");
    save(&mut world, &text);
    let approved = &world.state.node(router.id).unwrap().node.approved;
    assert_eq!(approved.len(), 3);
    let again = review(&world, &text);
    assert!(again.routes.is_empty() && lines(&again).is_empty());
}

#[test]
fn saving_the_same_policy_does_not_approve_revoked_routes() {
    let mut world = World::new();
    let router = router(&mut world);
    let approvers = json!({ "routes": { "10.0.0.0/16": ["tag:gate"] } });
    let text = policy(&json!({ "acls": [], "autoApprovers": approvers }));
    assert_eq!(review(&world, &text).routes.len(), 1);
    save(&mut world, &text);
    world.state.approve_routes(router.id, &[], world.now).unwrap();
    assert!(review(&world, &text).routes.is_empty());
    save(&mut world, &text);
    assert!(world.state.node(router.id).unwrap().node.approved.is_empty());
}

#[test]
fn omitted_parts_of_a_saved_policy_are_omitted_after_a_restart() {
    let mut world = World::new();
    let (key, db) = (world.reusable(), tagged(&mut world, "tag:db"));
    let rules = json!([
        { "action": "accept", "src": ["anna@"], "dst": ["tag:db:1"], "srcPosture": ["posture:x"] },
        { "action": "accept", "src": ["anna@"], "dst": ["tag:db:2"] },
    ]);
    let text =
        policy(&json!({ "acls": rules, "postures": { "posture:x": ["node:os == 'linux'"] } }));
    let text = text.to_string();
    assert!(Policy::parse(&text).is_err());
    let read = Policy::parse_supported(&text).unwrap();
    world.state.save_policy(&text, &read, world.now).unwrap();
    world.commit();
    let (_, mut base) = (world.join(1, &key), world.join(2, &db));
    for _ in 0..2 {
        while world.poll(&mut base) {}
        let ports = |number: u16| json!({ "First": number, "Last": number });
        assert_eq!(base.filter[0]["DstPorts"][0]["Ports"], ports(2));
        assert_eq!(base.filter[0]["DstPorts"].as_array().unwrap().len(), 2, "{}", base.filter);
        world.restart();
        world.follow(&mut base);
    }
}

#[test]
fn a_policy_without_rules_and_unmatched_names_cause_warnings() {
    let world = World::new();
    let found = review(&world, &json!({ "groups": { "group:a": ["anna@", "eve@"] } })).warnings;
    let reasons: Vec<&Reason> = found.iter().map(|fault| &fault.reason).collect();
    assert_eq!(reasons, [&Reason::NoRules, &Reason::NoUser("eve@".into())]);
    assert!(review(&world, &json!({ "acls": [] })).warnings.is_empty());
}

#[test]
fn a_stored_policy_with_invalid_names_is_loaded_without_them() {
    let mut world = World::new();
    let (key, db) = (world.reusable(), tagged(&mut world, "tag:db"));
    let rule = |source: &str, port: u16| json!({ "action": "accept", "src": [source], "dst": [format!("tag:db:{port}")] });
    let good = policy(&json!({ "acls": [rule("anna@", 1), rule("anna@", 2)] })).to_string();
    let read = Policy::parse(&good).unwrap();
    let previous = policy(
        &json!({ "acls": [rule("@", 1), rule("anna@", 2)], "groups": { "group:a": ["user:*@x"] },
        "tests": [{ "src": "user:*@", "deny": ["tag:db:1"] }] }),
    )
    .to_string();
    assert!(Policy::parse_supported(&previous).is_err());
    world.state.save_policy(&previous, &read, world.now).unwrap();
    for write in world.state.take_writes() {
        world.store.insert((write.kind.name(), write.id), write);
    }
    world.restart();
    assert_eq!(world.state.left_out().len(), 3, "{:?}", world.state.left_out());
    let (laptop, mut base) = (world.join(1, &key), world.join(2, &db));
    while world.poll(&mut base) {}
    let ports = base.filter[0]["DstPorts"].as_array().unwrap();
    assert!(ports.iter().all(|port| port["Ports"]["First"] == 2), "{}", base.filter);
    assert!(base.filter.to_string().contains(&world.address(&laptop)));
}
