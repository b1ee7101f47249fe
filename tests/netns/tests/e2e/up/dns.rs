//! Name servers are set and reverted with each DNS manager.

use crate::up::world;

#[test]
fn dns_servers_are_set_and_reverted() {
    let world = world();
    let file = world.conf("DNS = 10.9.0.2, fd09::2, example.test", "10.9.0.0/24");
    world.up(&file);
    let resolv = world.left.read("/run/rig/resolv.conf");
    for word in ["nameserver 10.9.0.2", "nameserver fd09::2", "search example.test"] {
        assert!(resolv.contains(word), "no `{word}` in\n{resolv}");
    }
    world.down(&file);
}

#[test]
fn without_resolvconf_the_file_is_written_and_restored_unless_changed() {
    let world = world();
    world.left.run("rm /run/rig/bin/resolvconf");
    let former = "nameserver 192.0.2.53\nsearch former.test\n";
    world.left.write("resolv.conf", former);
    let file = world.conf("DNS = 10.9.0.2, example.test", "10.9.0.0/24");
    world.up(&file);
    let resolv = world.left.read("/run/rig/resolv.conf");
    let lines: Vec<_> = resolv.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["nameserver 10.9.0.2", "search example.test"], "{resolv}");
    assert!(world.linerate("down", &file).ok);
    assert_eq!(world.left.read("/run/rig/resolv.conf"), former);

    world.up(&file);
    let later = "nameserver 192.0.2.54\n";
    world.left.write("resolv.conf", later);
    assert!(world.linerate("down", &file).ok);
    assert_eq!(world.left.read("/run/rig/resolv.conf"), later, "the other program's text is gone");
}

/// A replacement for resolvectl(1) that records its arguments.
#[test]
fn systemd_resolved_is_used_if_it_runs() {
    let world = world();
    let script = "#!/bin/sh\necho \"$@\" >>/run/rig/asked\n";
    world.left.write_program("resolvectl", script);
    let stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\n";
    world.left.write("resolv.conf", stub);
    let file = world.conf("DNS = 10.9.0.2, fd09::2, example.test", "10.9.0.0/24");
    world.up(&file);
    let request = "dns wg0 10.9.0.2 fd09::2\ndomain wg0 ~. example.test\n";
    assert_eq!(world.left.read("/run/rig/asked"), request);
    assert!(world.linerate("down", &file).ok);
    assert_eq!(world.left.read("/run/rig/resolv.conf"), stub);
}
