//! The policy rules of a full tunnel, and changes by others.

use netns::eventually;

use crate::up::{PATIENCE, World, world};

#[test]
fn a_rule_deleted_by_post_up_stays_deleted_and_others_are_restored() {
    let world = world();
    let file = world.conf(
        "RulePriority = 100\nPostUp = ip rule del table main suppress_prefixlength 0",
        "0.0.0.0/0, ::/0",
    );
    world.up(&file);
    let rules = || world.left.run("ip -4 rule show");
    world.left.run("ip -4 rule del priority 101; ip -6 rule del priority 100");
    eventually("the other is restored", PATIENCE, || rules().contains("101:"));
    assert!(!rules().contains("suppress_prefixlength"), "{}", rules());
    let of_ipv6 = || world.left.run("ip -6 rule show").contains("100:");
    eventually("so is that of the other family", PATIENCE, of_ipv6);
    let report = world.left.run("cat /run/linerate/up/wg0.undo");
    assert!(!report.contains("rule 4 100"), "{report}");
    world.down(&file);
}

/// The lines of `ip rule` before those of the main table, with single spaces.
fn order(world: &World, family: &str) -> Vec<String> {
    let rules = world.left.run(format!("ip {family} rule show"));
    let lines = rules.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.take_while(|line| !line.ends_with("from all lookup main")).collect()
}

#[test]
fn our_rules_precede_others_of_any_priority() {
    let world = world();
    for (other, first, second) in [(1, 0, 0), (2, 0, 1), (3, 1, 2), (100, 98, 99)] {
        for family in ["-4", "-6"] {
            world.left.run(format!("ip {family} rule add fwmark 9 table 9 priority {other}"));
        }
        let file = world.conf("", "0.0.0.0/0, ::/0");
        world.up(&file);
        let expected = [
            "0: from all lookup local".to_owned(),
            format!("{first}: from all lookup main suppress_prefixlength 0"),
            format!("{second}: not from all fwmark 0xca6c lookup 51820"),
            format!("{other}: from all fwmark 0x9 lookup 9"),
        ];
        for family in ["-4", "-6"] {
            assert_eq!(order(&world, family), expected);
        }
        world.reaches(&["192.0.2.1", "2001:db8::1", "10.1.0.2"]);
        // The kernel would add the first after the second.
        world.left.run("ip rule del table main suppress_prefixlength 0");
        eventually("it is restored", PATIENCE, || order(&world, "-4") == expected);
        for family in ["-4", "-6"] {
            world.left.run(format!("ip {family} rule del priority {other}"));
        }
        world.down(&file);
    }
}
