//! Remains of a killed daemon.

use netns::{INTERFACE, eventually, linerate};

use crate::up::{PATIENCE, World, state, world};

impl World {
    /// Kills the daemon; its changes remain.
    fn crash(&self) {
        let pid = self.left.daemon_of(INTERFACE).expect("the daemon runs");
        self.left.run(format!("kill -KILL {pid}"));
        eventually("the interface is gone", PATIENCE, || !self.left.has_device(INTERFACE));
        let left_behind = &state(&self.left) - &self.before;
        assert!(!left_behind.is_empty(), "there is nothing to revert");
    }
}

const EVERYTHING: &str = "DNS = 10.9.0.2\nOfferRoutes = 192.0.2.0/24, 2001:db8::/32\n\
                          Masquerade = true\nIpForward = true";

#[test]
fn changes_of_a_killed_daemon_are_reverted_by_down_and_by_the_next_up() {
    for in_file in [true, false] {
        let world = world();
        if in_file {
            world.left.run("rm /run/rig/bin/resolvconf");
        }
        let full = world.conf(EVERYTHING, "0.0.0.0/0, ::/0");
        world.up(&full);
        assert_eq!(world.left.run("cat /proc/sys/net/ipv4/ip_forward").trim(), "1");
        world.crash();
        let swept = world.linerate("down", &full);
        assert!(swept.ok && swept.stderr.contains("reverted"), "{}", swept.stderr);
        world.is_as_before();
        assert!(!world.linerate("down", &full).ok, "there was nothing left to revert");

        world.up(&full);
        world.crash();
        let plain = world.conf("", "10.9.0.0/24");
        world.up(&plain);
        let rules = world.left.run("ip rule; ip -6 rule; nft list ruleset; cat /etc/resolv.conf");
        for word in ["fwmark", "suppress", "table inet", "10.9.0.2"] {
            assert!(!rules.contains(word), "{word} is in\n{rules}");
        }
        world.down(&plain);
    }
}

#[test]
fn a_check_for_remains_writes_nothing() {
    let world = world();
    assert!(!world.linerate("down", INTERFACE).ok, "nothing was left");
    linerate(&world.right.host, "doctor");
    for host in [&world.left, &world.right.host] {
        assert!(!host.has("/run/linerate"), "{}", host.run("find /run/linerate"));
    }
}

/// As after a loss of power: /run is empty, but /etc is not.
#[test]
fn resolv_conf_is_restored_after_run_was_lost() {
    let world = world();
    world.left.run("rm /run/rig/bin/resolvconf");
    let former = "nameserver 192.0.2.53\n";
    world.left.write("resolv.conf", former);
    let file = world.conf("DNS = 10.9.0.2", "10.9.0.0/24");
    world.up(&file);
    world.crash();
    world.left.run("rm -r /run/wireguard /run/linerate");
    assert!(world.linerate("down", &file).ok);
    assert_eq!(world.left.read("/run/rig/resolv.conf"), former);
}
