//! Whose the policy rules of a full tunnel are.

use netns::eventually;

use crate::up::{PATIENCE, world};

#[test]
fn a_rule_that_post_up_deletes_stays_deleted_and_the_others_are_put_back() {
    let world = world();
    let file = world.conf(
        "RulePriority = 100\nPostUp = ip rule del table main suppress_prefixlength 0",
        "0.0.0.0/0, ::/0",
    );
    world.up(&file);
    let rules = || world.left.run("ip -4 rule show");
    world.left.run("ip -4 rule del priority 101; ip -6 rule del priority 100");
    eventually("the other is put back", PATIENCE, || rules().contains("101:"));
    assert!(!rules().contains("suppress_prefixlength"), "{}", rules());
    let of_ipv6 = || world.left.run("ip -6 rule show").contains("100:");
    eventually("so is that of the other family", PATIENCE, of_ipv6);
    let told = world.left.run("cat /run/linerate/up/wg0.undo");
    assert!(!told.contains("rule 4 100"), "{told}");
    world.down(&file);
}
