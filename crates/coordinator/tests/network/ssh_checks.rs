//! Checked logins by SSH.

use std::time::Duration;

use coordinator::{SshOutcome, object::NodeId};
use serde_json::{Value, json};

use crate::{
    policy::{key_of, policy, save, tagged},
    simulation::World,
};

const ACCOUNT: &str = "www";

fn check(period: &str) -> Value {
    json!({ "ssh": [{
        "action": "check", "src": ["anna@"], "dst": ["autogroup:self"], "users": [ACCOUNT],
        "checkPeriod": period,
    }]})
}

/// Two nodes of anna.
fn two() -> (World, [NodeId; 2]) {
    let mut world = World::new();
    let key = world.reusable();
    let ends = [1, 2].map(|number| world.join(number, &key).id);
    (world, ends)
}

fn request_login(
    world: &mut World,
    ends: [NodeId; 2],
    followed: Option<&str>,
    number: &str,
) -> SshOutcome {
    world.state.ssh_login(ends, ACCOUNT, followed, number, world.now)
}

fn pending(number: &str) -> SshOutcome {
    SshOutcome::Pending(number.to_owned())
}

#[test]
fn a_login_waits_for_confirmation_which_is_valid_for_the_period() {
    let (mut world, ends) = two();
    save(&mut world, &check("1h"));
    assert_eq!(request_login(&mut world, ends, None, "a"), pending("a"));
    assert_eq!(
        request_login(&mut world, ends, Some("a"), "b"),
        pending("a"),
        "it is pending under its number"
    );
    let login = world.state.decide_ssh("a", true, world.now).unwrap();
    assert_eq!((login.from, login.user, login.at), (ends[0], Some(world.user), ends[1]));
    assert!(world.state.decide_ssh("a", false, world.now).is_err(), "it is decided once");
    assert_eq!(request_login(&mut world, ends, Some("a"), "c"), SshOutcome::Accepted);
    assert_eq!(request_login(&mut world, ends, None, "d"), SshOutcome::Accepted);
    let back = [ends[1], ends[0]];
    assert_eq!(
        request_login(&mut world, back, None, "e"),
        pending("e"),
        "the other way is another login"
    );
    world.pass(Duration::from_secs(3600));
    assert_eq!(request_login(&mut world, ends, None, "f"), pending("f"));
    world.state.decide_ssh("f", false, world.now).unwrap();
    assert!(matches!(request_login(&mut world, ends, Some("f"), "g"), SshOutcome::Refused(_)));
    assert_eq!(
        request_login(&mut world, ends, Some("f"), "h"),
        pending("h"),
        "it may be tried again"
    );
}

#[test]
fn with_period_always_a_confirmation_is_valid_for_one_login() {
    let (mut world, ends) = two();
    save(&mut world, &check("always"));
    for (number, next) in [("a", "b"), ("b", "c")] {
        assert_eq!(request_login(&mut world, ends, None, number), pending(number));
        world.state.decide_ssh(number, true, world.now).unwrap();
        assert_eq!(request_login(&mut world, ends, Some(number), next), SshOutcome::Accepted);
        assert_eq!(request_login(&mut world, ends, Some(number), "again"), pending("again"));
    }
}

#[test]
fn a_too_long_account_name_is_refused() {
    let (mut world, ends) = two();
    let mut policy = check("always");
    policy["ssh"][0]["users"] = json!(["autogroup:nonroot"]);
    save(&mut world, &policy);
    let mut login = |length: usize, number| {
        let account = "a".repeat(length);
        world.state.ssh_login(ends, &account, None, number, world.now)
    };
    assert_eq!(login(256, "a"), pending("a"));
    assert!(matches!(login(257, "b"), SshOutcome::Refused(_)));
}

#[test]
fn the_number_of_a_confirmed_login_accepts_no_other_login() {
    let (mut world, ends) = two();
    let mut policy = check("always");
    policy["ssh"][0]["users"] = json!([ACCOUNT, "root"]);
    save(&mut world, &policy);
    assert_eq!(request_login(&mut world, ends, None, "a"), pending("a"));
    world.state.decide_ssh("a", true, world.now).unwrap();
    let as_root = world.state.ssh_login(ends, "root", Some("a"), "b", world.now);
    assert_eq!(as_root, pending("b"));
    let back = [ends[1], ends[0]];
    assert_eq!(request_login(&mut world, back, Some("a"), "c"), pending("c"));
    assert_eq!(request_login(&mut world, ends, Some("a"), "d"), SshOutcome::Accepted);
}

#[test]
fn only_a_login_that_the_policy_checks_can_be_confirmed() {
    let (mut world, ends) = two();
    let is_refused = |world: &mut World, account: &str, followed| {
        let outcome = world.state.ssh_login(ends, account, followed, "n", world.now);
        matches!(outcome, SshOutcome::Refused(_))
    };
    assert!(is_refused(&mut world, ACCOUNT, None), "there is no policy");
    save(&mut world, &check("1h"));
    assert!(is_refused(&mut world, "root", None));
    assert_eq!(request_login(&mut world, ends, None, "a"), pending("a"));
    world.state.decide_ssh("a", true, world.now).unwrap();
    save(&mut world, &json!({ "ssh": [] }));
    assert!(is_refused(&mut world, ACCOUNT, Some("a")), "the policy has changed");
    save(&mut world, &check("1h"));
    world.state.set_expiry(ends[0], Some(world.now), world.now).unwrap();
    assert!(is_refused(&mut world, ACCOUNT, None), "its key has expired");
    world.state.set_expiry(ends[0], None, world.now).unwrap();
    world.commit();
    assert_eq!(request_login(&mut world, ends, None, "b"), SshOutcome::Accepted);
    world.state.delete_node(ends[0]).unwrap();
    assert!(is_refused(&mut world, ACCOUNT, None));
}

#[test]
fn pending_logins_are_limited_in_time_and_number() {
    let (mut world, ends) = two();
    save(&mut world, &check("1h"));
    assert_eq!(request_login(&mut world, ends, None, "late"), pending("late"));
    world.pass(Duration::from_secs(15 * 60));
    assert!(world.state.decide_ssh("late", true, world.now).is_err());
    assert!(matches!(request_login(&mut world, ends, Some("late"), "x"), SshOutcome::Refused(_)));
    for flood in 0..100 {
        request_login(&mut world, ends, None, &format!("{flood:03}"));
        world.pass(Duration::from_millis(1));
    }
    let waits =
        |number: &u32| world.state.pending_ssh_login(&format!("{number:03}"), world.now).is_some();
    let waiting: Vec<u32> = (0..100).filter(waits).collect();
    assert_eq!((waiting.len(), waiting[0]), (64, 36), "the newest");
}

#[test]
fn a_flood_of_logins_does_not_evict_logins_of_other_users_at_the_node() {
    let mut world = World::new();
    let (key, other) = (world.reusable(), world.add_user("ben"));
    let (of_other, server) = (key_of(&mut world, other), tagged(&mut world, "tag:db"));
    let at = world.join(1, &server).id;
    let [flood, mine] = [world.join(2, &key).id, world.join(3, &of_other).id];
    let rule = json!({ "ssh": [{
        "action": "check", "src": ["autogroup:member"], "dst": ["tag:db"], "users": [ACCOUNT],
    }]});
    save(&mut world, &policy(&rule));
    assert_eq!(request_login(&mut world, [mine, at], None, "mine"), pending("mine"));
    for number in 0..100 {
        world.pass(Duration::from_millis(1));
        request_login(&mut world, [flood, at], None, &format!("{number:03}"));
    }
    assert_eq!(request_login(&mut world, [mine, at], Some("mine"), "x"), pending("mine"));
    let is_open = |number: &str| world.state.pending_ssh_login(number, world.now).is_some();
    assert!(!is_open("036") && is_open("037"), "only the newest of the flood remain");
}

#[test]
fn a_decision_that_is_not_stored_is_undone_and_redone_if_stored_after_all() {
    let (mut world, ends) = two();
    save(&mut world, &check("1h"));
    assert_eq!(request_login(&mut world, ends, None, "a"), pending("a"));
    world.commit();
    world.state.decide_ssh("a", true, world.now).unwrap();
    let redo = world.state.undo(world.now);
    assert_eq!(request_login(&mut world, ends, Some("a"), "b"), pending("a"));
    assert_eq!(request_login(&mut world, ends, None, "b"), pending("b"));
    world.state.redo(redo, world.now);
    assert_eq!(request_login(&mut world, ends, Some("a"), "c"), SshOutcome::Accepted);
    assert_eq!(request_login(&mut world, ends, None, "d"), SshOutcome::Accepted);
}
