//! The active policy: its effect on each client, and the small updates after changes.

use std::collections::BTreeSet;

use coordinator::{NewKey, Refusal, object::UserId};
use policy::{Node, Nodes, Policy, Role, to_json};
use serde_json::{Value, json};

use crate::simulation::{Machine, World};

pub(crate) fn save(world: &mut World, text: &Value) {
    try_save(world, text).unwrap();
}

fn try_save(world: &mut World, text: &Value) -> Result<(), Refusal> {
    let text = text.to_string();
    let policy = Policy::parse(&text).unwrap();
    let outcome = world.state.save_policy(&text, &policy, world.now);
    world.commit();
    outcome.map(drop)
}

/// A policy with these rules, and with tags that Anna owns.
pub(crate) fn policy(rules: &Value) -> Value {
    let mut policy = json!({
        "tagOwners": {
            "tag:db": ["anna@"], "tag:web": ["anna@"], "tag:gate": ["anna@"],
            "tag:child": ["tag:web"], "tag:none": [],
        },
    });
    policy.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    policy
}

pub(crate) fn tagged(world: &mut World, tag: &str) -> String {
    let tags = vec![tag.to_owned()];
    world.auth_key(NewKey { tags, reusable: true, ..NewKey::default() })
}

pub(crate) fn key_of(world: &mut World, user: UserId) -> String {
    world.auth_key(NewKey { user: Some(user), reusable: true, ..NewKey::default() })
}

fn drain(world: &mut World, machines: &mut [&mut Machine]) {
    for machine in machines {
        while world.poll(machine) {}
    }
}

fn ports(number: u16) -> Value {
    json!({ "First": number, "Last": number })
}

#[test]
fn without_a_policy_all_nodes_reach_each_other_and_with_an_empty_one_none() {
    let mut world = World::new();
    let key = world.reusable();
    let (mut one, mut other) = (world.join(1, &key), world.join(2, &key));
    drain(&mut world, &mut [&mut one, &mut other]);
    assert_eq!(one.filter[0]["SrcIPs"], json!(["*"]));
    save(&mut world, &json!({ "acls": [] }));
    drain(&mut world, &mut [&mut one, &mut other]);
    for machine in [&one, &other] {
        assert_eq!((&machine.filter, machine.peers.len()), (&json!([]), 0));
    }
    let anybody = json!({ "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }] });
    save(&mut world, &anybody);
    drain(&mut world, &mut [&mut one, &mut other]);
    assert_eq!((one.peers.len(), other.peers.len()), (1, 1));
    assert_ne!(one.filter, json!([]));
}

#[test]
fn peers_are_visible_only_if_one_may_reach_the_other() {
    let mut world = World::new();
    let key = world.reusable();
    let (db, web) = (tagged(&mut world, "tag:db"), tagged(&mut world, "tag:web"));
    let rule = json!({ "action": "accept", "src": ["anna@"], "dst": ["tag:db:5432"] });
    save(&mut world, &policy(&json!({ "acls": [rule] })));
    let mut laptop = world.join(1, &key);
    let (mut base, mut site) = (world.join(2, &db), world.join(3, &web));
    drain(&mut world, &mut [&mut laptop, &mut base, &mut site]);
    assert_eq!(laptop.peers.keys().collect::<Vec<_>>(), [&base.id.0]);
    assert_eq!(base.peers.keys().collect::<Vec<_>>(), [&laptop.id.0]);
    assert!(site.peers.is_empty() && site.filter == json!([]) && laptop.filter == json!([]));
    assert_eq!(base.filter[0]["DstPorts"][0]["Ports"], ports(5432));
    assert_eq!(base.filter[0]["SrcIPs"][0], world.address(&laptop));
    let site_id = site.id;
    world.state.tag_node(site_id, &["tag:db".into()], world.now).unwrap();
    world.commit();
    drain(&mut world, &mut [&mut laptop, &mut base, &mut site]);
    assert_eq!((laptop.peers.len(), base.peers.len(), site.peers.len()), (2, 1, 1));
    assert_eq!(site.filter[0]["DstPorts"][0]["Ports"], ports(5432));
    world.state.delete_node(laptop.id).unwrap();
    world.commit();
    drain(&mut world, &mut [&mut base, &mut site]);
    assert!(base.peers.is_empty() && base.filter == json!([]) && site.filter == json!([]));
}

#[test]
fn a_change_that_no_rule_depends_on_sends_no_filter() {
    let mut world = World::new();
    let key = world.reusable();
    let db = tagged(&mut world, "tag:db");
    let rules = [
        json!({ "action": "accept", "src": ["*"], "dst": ["*:*"] }),
        json!({ "action": "accept", "src": ["tag:web"], "dst": ["tag:db:1"] }),
    ];
    save(&mut world, &policy(&json!({ "acls": rules })));
    let (mut one, mut base) = (world.join(1, &key), world.join(2, &db));
    drain(&mut world, &mut [&mut one, &mut base]);
    let frames = (one.frames.len(), base.frames.len());
    let mut third = world.join(3, &key);
    drain(&mut world, &mut [&mut one, &mut base, &mut third]);
    world.send_update(&third, json!({ "Endpoints": ["192.0.2.77:1"] }));
    world.disconnect(&mut third);
    world.pass(std::time::Duration::from_secs(20));
    drain(&mut world, &mut [&mut one, &mut base]);
    for (machine, before) in [(&one, frames.0), (&base, frames.1)] {
        let later = &machine.frames[before..];
        assert!(!later.is_empty());
        let has = |name: &str| later.iter().flatten().any(|field| field == name);
        assert!(!has("PacketFilters") && !has("SSHPolicy") && !has("Node"), "{later:?}");
    }
}

#[test]
fn a_new_policy_with_the_same_effect_sends_nothing() {
    let mut world = World::new();
    let ben = world.add_user("ben");
    let (key, bens) = (world.reusable(), key_of(&mut world, ben));
    let db = tagged(&mut world, "tag:db");
    let rule = json!({ "action": "accept", "src": ["anna@"], "dst": ["tag:db:5432"] });
    let own =
        json!({ "action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:*"] });
    save(&mut world, &policy(&json!({ "acls": [rule, own] })));
    let (mut one, mut base) = (world.join(1, &key), world.join(2, &db));
    drain(&mut world, &mut [&mut one, &mut base]);
    let more = json!({ "action": "accept", "src": ["ben@"], "dst": ["tag:db:22"] });
    save(&mut world, &policy(&json!({ "acls": [rule, own, more] })));
    assert!(!world.poll(&mut one) && !world.poll(&mut base));
    // Ben's first machine adds rules.
    let mut bens = world.join(3, &bens);
    drain(&mut world, &mut [&mut bens]);
    assert!(!world.poll(&mut one));
    assert!(world.poll(&mut base));
    assert_eq!((one.peers.len(), base.peers.len(), bens.peers.len()), (1, 2, 1));
}

#[test]
fn a_long_list_of_sources_is_sent_again_when_it_grows() {
    let mut world = World::new();
    let (key, db) = (world.reusable(), tagged(&mut world, "tag:db"));
    let rule = json!({ "action": "accept", "src": ["autogroup:member"], "dst": ["tag:db:5432"] });
    save(&mut world, &policy(&json!({ "acls": [rule] })));
    let mut base = world.join(1, &db);
    for number in 2..150 {
        world.join(number, &key);
    }
    drain(&mut world, &mut [&mut base]);
    let sources = |of: &Machine| of.filter[0]["SrcIPs"].as_array().unwrap().len();
    assert_eq!((sources(&base), base.peers.len()), (2 * 148, 148));
    let one = world.join(150, &key);
    drain(&mut world, &mut [&mut base]);
    assert_eq!(sources(&base), 2 * 149);
    let addresses = base.filter[0]["SrcIPs"].as_array().unwrap();
    assert!(addresses.contains(&json!(world.address(&one))));
}

#[test]
fn networks_of_a_router_are_visible_to_nodes_that_may_reach_them() {
    let mut world = World::new();
    let ben = world.add_user("ben");
    let (key, bens) = (world.reusable(), key_of(&mut world, ben));
    let gate = tagged(&mut world, "tag:gate");
    let rules = [
        json!({ "action": "accept", "src": ["anna@"], "dst": ["10.0.0.0/24:80", "tag:gate:22"] }),
        json!({ "action": "accept", "src": ["ben@"], "dst": ["tag:gate:22"] }),
    ];
    let approvers = json!({ "routes": { "10.0.0.0/16": ["tag:gate"] }, "exitNode": ["tag:gate"] });
    let text = policy(&json!({ "acls": rules, "autoApprovers": approvers }));
    save(&mut world, &text);
    let (mut anna, mut ben) = (world.join(1, &key), world.join(2, &bens));
    let mut router = Machine::new(3);
    router.hostinfo["RoutableIPs"] = json!(["10.0.0.0/24", "10.9.0.0/24", "0.0.0.0/0"]);
    assert_eq!(world.register(&mut router, &gate), "");
    world.send_update(&router, json!({}));
    world.follow(&mut router);
    drain(&mut world, &mut [&mut anna, &mut ben]);
    let approved = &world.state.node(router.id).unwrap().node.approved;
    let approved: BTreeSet<String> = approved.iter().map(ToString::to_string).collect();
    assert_eq!(approved, ["0.0.0.0/0", "10.0.0.0/24"].map(str::to_owned).into());
    let allowed = |machine: &Machine| machine.peer(&router)["AllowedIPs"].to_string();
    assert!(allowed(&anna).contains("10.0.0.0/24") && !allowed(&anna).contains("0.0.0.0/0"));
    assert!(!allowed(&ben).contains("10.0.0.0/24"), "{}", allowed(&ben));
    assert!(ben.peer(&router).get("PrimaryRoutes").is_none());
    assert_eq!(anna.peer(&router)["PrimaryRoutes"], json!(["10.0.0.0/24"]));
    let more = json!({ "action": "accept", "src": ["ben@"],
        "dst": ["10.0.0.7:443", "autogroup:internet:*"] });
    let rules = [rules[0].clone(), rules[1].clone(), more];
    save(&mut world, &policy(&json!({ "acls": rules })));
    drain(&mut world, &mut [&mut anna, &mut ben]);
    assert!(allowed(&ben).contains("10.0.0.0/24") && allowed(&ben).contains("0.0.0.0/0"));
    let approved = world.state.node(router.id).unwrap().node.approved.len();
    assert_eq!(approved, 2, "a policy never revokes an approval");
}

#[test]
fn a_saved_policy_approves_routes_that_are_already_advertised() {
    let mut world = World::new();
    let gate = tagged(&mut world, "tag:gate");
    let mut router = Machine::new(1);
    router.hostinfo["RoutableIPs"] = json!(["10.0.0.0/24"]);
    assert_eq!(world.register(&mut router, &gate), "");
    assert!(world.state.node(router.id).unwrap().node.approved.is_empty());
    let approvers = json!({ "routes": { "10.0.0.0/16": ["tag:gate"] } });
    save(&mut world, &policy(&json!({ "autoApprovers": approvers })));
    assert_eq!(world.state.node(router.id).unwrap().node.approved.len(), 1);
    world.restart();
    assert_eq!(world.state.node(router.id).unwrap().node.approved.len(), 1);
}

#[test]
fn approved_routes_of_a_router_with_changing_networks_are_bounded() {
    let mut world = World::new();
    let gate = tagged(&mut world, "tag:gate");
    let approvers = json!({ "routes": { "10.0.0.0/8": ["tag:gate"] } });
    save(&mut world, &policy(&json!({ "autoApprovers": approvers })));
    let mut router = Machine::new(1);
    assert_eq!(world.register(&mut router, &gate), "");
    for second in 0..12 {
        let nets: Vec<String> = (0..200).map(|third| format!("10.{second}.{third}.0/24")).collect();
        router.hostinfo["RoutableIPs"] = json!(nets);
        world.send_update(&router, json!({}));
        let node = &world.state.node(router.id).unwrap().node;
        assert!(node.routes().count() == 200 && node.approved.len() <= 1024);
    }
}

#[test]
fn a_node_receives_its_ssh_rules_and_attributes() {
    let mut world = World::new();
    let key = world.reusable();
    let db = tagged(&mut world, "tag:db");
    let text = policy(&json!({
        "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }],
        "ssh": [{ "action": "accept", "src": ["anna@"], "dst": ["tag:db"], "users": ["root"] }],
        "nodeAttrs": [{ "target": ["tag:db"], "attr": ["funnel"] }],
        "randomizeClientPort": true,
        "grants": [{ "src": ["anna@"], "dst": ["tag:db"],
                     "app": { "example.com/cap/x": [{ "y": 1 }] } }],
    }));
    let (mut one, mut base) = (world.join(1, &key), world.join(2, &db));
    save(&mut world, &text);
    drain(&mut world, &mut [&mut one, &mut base]);
    let address = world.address(&one);
    let rule = &base.ssh["rules"][0];
    assert_eq!(rule["principals"][0]["nodeIP"], address);
    assert_eq!(
        (&rule["sshUsers"]["root"], &rule["action"]["accept"]),
        (&json!("root"), &json!(true))
    );
    assert_eq!(one.ssh, json!({ "rules": [] }));
    let has = |machine: &Machine, name: &str| machine.own["CapMap"].get(name).is_some();
    assert!(has(&base, "funnel") && !has(&one, "funnel"));
    assert!(has(&base, "randomize-client-port") && has(&one, "randomize-client-port"));
    let grants = base.filter.as_array().unwrap().iter().filter_map(|rule| rule.get("CapGrant"));
    assert_eq!(grants.count(), 1);
    let frames = base.frames.len();
    save(&mut world, &json!({ "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }] }));
    drain(&mut world, &mut [&mut one, &mut base]);
    assert_eq!((&base.ssh, has(&base, "funnel")), (&json!({ "rules": [] }), false));
    assert_eq!(base.frames.len(), frames + 1);
}

#[test]
fn the_owner_cannot_be_deleted_before_ownership_moves() {
    let mut world = World::new();
    let (anna, ben) = (world.user, world.add_user("ben"));
    let rule = json!({ "action": "accept", "src": ["autogroup:owner"], "dst": ["*:22"] });
    save(&mut world, &json!({ "tagOwners": { "tag:db": [] }, "acls": [rule] }));
    let of_ben = key_of(&mut world, ben);
    let (mut machine, target) = (world.join(1, &of_ben), tagged(&mut world, "tag:db"));
    let mut target = world.join(2, &target);
    let allows_tag = |world: &mut World, target: &mut Machine, machine: &Machine| {
        drain(world, &mut [target]);
        target.filter.to_string().contains(&world.address(machine))
    };
    assert_eq!(world.state.delete_user(anna), Err(Refusal::IsOwner(anna)));
    assert!(!allows_tag(&mut world, &mut target, &machine), "ben is not the owner");
    world.state.make_owner(ben).unwrap();
    world.commit();
    assert!(allows_tag(&mut world, &mut target, &machine));
    world.state.delete_user(anna).unwrap();
    world.commit();
    world.restart();
    world.follow(&mut target);
    assert!(allows_tag(&mut world, &mut target, &machine), "it was stored");
    let carl = world.add_user("carl");
    world.state.make_owner(carl).unwrap();
    world.commit();
    assert!(!allows_tag(&mut world, &mut target, &machine), "there is one owner");
    assert_eq!(world.state.owner(), Some(carl));
    assert_eq!(world.state.make_owner(UserId(99)), Err(Refusal::NoUser("99".into())));
    drain(&mut world, &mut [&mut machine]);
}

#[test]
fn an_ownership_that_is_not_stored_does_not_move_and_the_last_user_can_be_deleted() {
    let mut world = World::new();
    let ben = world.add_user("ben");
    world.state.make_owner(ben).unwrap();
    world.state.undo(world.now);
    assert_eq!(world.state.owner(), Some(world.user));
    world.state.delete_user(ben).unwrap();
    world.state.delete_user(world.user).unwrap();
    assert!(world.state.owner().is_none());
}

#[test]
fn a_node_gets_requested_tags_only_if_its_user_owns_them() {
    let mut world = World::new();
    let ben = world.add_user("ben");
    let (key, bens) = (world.reusable(), key_of(&mut world, ben));
    save(&mut world, &policy(&json!({})));
    let mut asks = |number: u8, key: &str, tags: Value| {
        let mut machine = Machine::new(number);
        machine.hostinfo["RequestTags"] = tags;
        let error = world.register(&mut machine, key);
        let node = world.state.node(machine.id).map(|view| view.node);
        (error, node.map(|node| (node.tags.clone(), node.user)))
    };
    let (error, node) = asks(1, &key, json!(["tag:db"]));
    assert_eq!((error.as_str(), node), ("", Some((vec!["tag:db".to_owned()], None))));
    let (error, node) = asks(2, &key, json!(["tag:child"]));
    assert_eq!((error.as_str(), node.unwrap().0), ("", vec!["tag:child".to_owned()]));
    for (number, key, tags) in
        [(3, &key, json!(["tag:db", "tag:none"])), (4, &bens, json!(["tag:none"]))]
    {
        let (error, node) = asks(number, key, tags);
        assert_eq!(error, "requested tags [tag:none] are invalid or not permitted");
        assert_eq!(node, None);
    }
}

#[test]
fn a_policy_with_a_failing_test_is_refused_and_a_restart_loads_the_active_one() {
    let mut world = World::new();
    let key = world.reusable();
    let first = json!({ "acls": [{ "action": "accept", "src": ["anna@"], "dst": ["anna@:22"] }] });
    let (mut one, mut other) = (world.join(1, &key), world.join(2, &key));
    save(&mut world, &first);
    drain(&mut world, &mut [&mut one, &mut other]);
    let (before, written) = (one.filter.clone(), world.store.len());
    let failing = json!({ "acls": [], "tests": [{ "src": "anna@", "accept": ["anna@:22"] }] });
    let Err(Refusal::Policy(why)) = try_save(&mut world, &failing) else { panic!("it fails") };
    assert_eq!((why.faults[0].line, why.faults[0].key.as_str()), (1, "tests[0]"));
    assert_eq!(world.store.len(), written);
    assert!(!world.poll(&mut one));
    world.restart();
    world.follow(&mut one);
    assert_eq!((&one.filter, one.peers.len()), (&before, 1));
    assert_eq!(world.state.policy().unwrap().text, first.to_string());
    save(&mut world, &json!({ "acls": [] }));
    assert_eq!(world.state.policies().count(), 2);
}

/// A fixed sequence of changes of everything that a policy depends on. At some steps and at the end, each client must
/// match a fresh compilation of the policy for the present network.
#[test]
fn clients_match_a_fresh_compilation_of_the_policy_after_any_changes() {
    let mut changes = 0;
    for seed in 1..=12u64 {
        let mut walk = Walk::new(seed);
        for step in 0..150 {
            walk.step(step);
            if step % 10 == 9 {
                walk.check();
            }
        }
        changes += walk.machines.iter().map(|machine| machine.frames.len()).sum::<usize>();
    }
    assert!(changes > 500, "{changes}");
}

const RULES: [&str; 10] = [
    r#"{"action":"accept","src":["*"],"dst":["tag:web:443"]}"#,
    r#"{"action":"accept","src":["autogroup:member"],"dst":["tag:db:5432","tag:gate:*"]}"#,
    r#"{"action":"accept","src":["autogroup:member"],"dst":["autogroup:self:*"]}"#,
    r#"{"action":"accept","src":["tag:web"],"dst":["10.0.0.0/16:80"]}"#,
    r#"{"action":"accept","src":["10.0.0.0/24"],"dst":["anna@:22"]}"#,
    r#"{"action":"accept","src":["ben@"],"dst":["autogroup:internet:*"]}"#,
    r#"{"action":"accept","src":["group:both"],"dst":["autogroup:tagged:1-9"]}"#,
    r#"{"action":"accept","src":["100.64.0.3"],"dst":["100.64.0.0/29:7"]}"#,
    r#"{"action":"accept","src":["anna@"],"dst":["ben@:25"]}"#,
    r#"{"action":"accept","src":["*"],"dst":["*:*"]}"#,
];

struct Walk {
    world: World,
    machines: Vec<Machine>,
    keys: Vec<String>,
    joined: u8,
    seed: u64,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut world = World::new();
        let ben = world.add_user("ben");
        let mut keys = vec![world.reusable(), key_of(&mut world, ben)];
        keys.extend(["tag:web", "tag:db", "tag:gate"].map(|tag| tagged(&mut world, tag)));
        Self { world, machines: Vec::new(), keys, joined: 0, seed }
    }

    fn pick(&mut self, among: usize) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % among
    }

    fn step(&mut self, step: usize) {
        if step == 5 || (step > 5 && self.pick(25) == 0) {
            let rules: Vec<Value> = RULES
                .iter()
                .filter(|_| self.pick(4) == 0)
                .map(|rule| serde_json::from_str(rule).unwrap())
                .collect();
            let groups = json!({ "group:both": ["anna@", "ben@"] });
            let ssh = json!([{ "action": "accept", "src": ["autogroup:member"],
                "dst": ["tag:db", "autogroup:self"], "users": ["autogroup:nonroot"] }]);
            let text = policy(&json!({ "acls": rules, "groups": groups, "ssh": ssh }));
            return save(&mut self.world, &text);
        }
        let what = self.pick(8);
        if self.machines.len() < 3 || ([0, 6].contains(&what) && self.joined < 200) {
            self.joined += 1;
            let key = self.pick(self.keys.len());
            let key = self.keys[key].clone();
            let machine = self.world.join(self.joined, &key);
            return self.machines.push(machine);
        }
        let at = self.pick(self.machines.len());
        let (id, now) = (self.machines[at].id, self.world.now);
        match what {
            1 => {
                self.machines.swap_remove(at);
                self.world.state.delete_node(id).unwrap();
            }
            2 => {
                let tag = ["tag:web", "tag:db", "tag:gate"][self.pick(3)];
                self.world.state.tag_node(id, &[tag.into()], now).unwrap();
            }
            3 => {
                let nets = [json!(["10.0.0.0/24"]), json!(["0.0.0.0/0"]), json!([])];
                self.machines[at].hostinfo["RoutableIPs"] = nets[self.pick(3)].clone();
                let endpoints = json!({ "Endpoints": ["192.0.2.1:1"] });
                self.world.send_update(&self.machines[at], endpoints);
            }
            4 => {
                let nets = ["10.0.0.0/24", "0.0.0.0/0"].map(|net| net.parse().unwrap());
                self.world.state.approve_routes(id, &nets, now).unwrap();
            }
            5 if self.pick(4) == 0 => {
                let ben = self.world.state.find_user("ben").map(|user| user.id);
                let (id, name) = match ben {
                    Ok(id) => (id, "bob"),
                    Err(_) => (self.world.state.find_user("bob").unwrap().id, "ben"),
                };
                let renamed = self.world.state.rename_user(id, name, now).map(drop);
                assert!(matches!(renamed, Ok(()) | Err(Refusal::NameInPolicy(_))), "{renamed:?}");
            }
            _ => drop(self.world.poll(&mut self.machines[at])),
        }
        self.world.commit();
    }

    fn check(&mut self) {
        for machine in &mut self.machines {
            while self.world.poll(machine) {}
            assert!(!machine.has_ended);
        }
        let state = &self.world.state;
        let Some(saved) = state.policy() else { return };
        let compiled = Policy::parse(&saved.text).unwrap().compile(&self.nodes());
        let ids: Vec<i64> = state.nodes().map(|view| view.node.id.0).collect();
        for machine in &self.machines {
            let own = ids.iter().position(|id| *id == machine.id.0).unwrap();
            assert_eq!(machine.filter, to_json(&compiled.filter(own)), "{}", saved.text);
            let ssh = json!({ "rules": compiled.ssh(own, "https://unused") });
            assert_eq!(machine.ssh, ssh);
            let peers: Vec<i64> = compiled.peers(own).iter().map(|index| ids[index]).collect();
            assert_eq!(machine.peers.keys().copied().collect::<Vec<_>>(), peers);
            for index in compiled.peers(own).iter() {
                let received = &machine.peers[&ids[index]]["AllowedIPs"];
                let view = state.nodes().nth(index).unwrap();
                let exits = view.node.routes().filter(|net| net.prefix_len() == 0);
                let routes = compiled.routes(own, index);
                let expected: BTreeSet<String> = exits
                    .chain(view.node.primaries.iter().copied())
                    .filter(|net| routes.contains(net))
                    .map(|net| net.to_string())
                    .collect();
                let received: BTreeSet<String> = received.as_array().unwrap()[2..]
                    .iter()
                    .map(|net| net.as_str().unwrap().to_owned())
                    .collect();
                assert_eq!(received, expected);
            }
        }
        self.assert_peers_are_mutual();
    }

    fn assert_peers_are_mutual(&self) {
        for one in &self.machines {
            for other in &self.machines {
                let sees = |from: &Machine, to: &Machine| from.peers.contains_key(&to.id.0);
                assert_eq!(sees(one, other), sees(other, one));
            }
        }
    }

    /// The network in the form of the crate `policy`.
    fn nodes(&self) -> Nodes {
        let state = &self.world.state;
        let users = state.users().enumerate().map(|(index, user)| policy::User {
            id: user.id.0.unsigned_abs(),
            name: user.name.clone(),
            email: user.email.clone(),
            role: (index == 0).then_some(Role::Owner),
        });
        let nodes = state.nodes().map(|view| Node {
            name: view.node.name.clone(),
            user: view.node.user.map(|id| id.0.unsigned_abs()),
            tags: view.node.tags.clone(),
            addresses: vec![view.node.v4.into(), view.node.v6.into()],
            routes: view.node.routes().collect(),
        });
        Nodes { users: users.collect(), nodes: nodes.collect(), domains: Vec::new() }
    }
}

#[test]
fn pool_addresses_go_to_the_nodes_of_the_pool_only() {
    let mut world = World::new();
    let pool = json!({ "target": ["tag:db"], "ipPool": ["100.64.0.2/31"] });
    let named = json!({ "target": ["tag:db"], "attr": ["randomize-client-port"] });
    save(&mut world, &policy(&json!({ "nodeAttrs": [pool, named] })));
    let (key, db) = (world.reusable(), tagged(&mut world, "tag:db"));
    let laptops = [1, 2, 3].map(|number| world.join(number, &key));
    assert_eq!(laptops.map(|one| world.address(&one)), ["100.64.0.1", "100.64.0.4", "100.64.0.5"]);
    let base = world.join(4, &db);
    assert_eq!(world.address(&base), "100.64.0.2");
    assert!(base.own["CapMap"].as_object().unwrap().contains_key("randomize-client-port"));
    world.join(5, &db);
    let mut third = Machine::new(6);
    assert!(world.register(&mut third, &db).contains("pool"), "the pool has two addresses");
    assert_eq!(world.register(&mut Machine::new(7), &key), "");
}
