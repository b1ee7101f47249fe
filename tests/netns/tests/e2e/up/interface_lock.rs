//! The interface lock: `up` and `down` wait for each other, and hooks that call linerate are refused.

use netns::{INTERFACE, Implementation, eventually};

use crate::up::{PATIENCE, world};

#[test]
fn up_and_down_wait_for_the_hooks_of_an_interface_with_a_killed_peer() {
    let world = world();
    let program = Implementation::Linerate.path();
    let program = program.display();
    let slow = "PreUp = [ ! -e /run/rig/slow ] || echo next >>/run/rig/slow\n\
                PostDown = echo began >/run/rig/slow; \
                while [ -e /run/rig/hold ]; do sleep 0.05; done; echo ended >>/run/rig/slow";
    let file = world.conf(slow, "10.9.0.0/24");
    for next in ["up", "down"] {
        world.up(&file);
        let pid = world.left.daemon_of(INTERFACE).expect("the daemon runs");
        world.left.run("touch /run/rig/hold");
        world.left.run(format!("setsid {program} down {file} >/dev/null 2>&1 &"));
        eventually("the hook runs", PATIENCE, || world.left.has("/run/rig/slow"));
        world.left.run(format!("kill -KILL {pid}"));
        let report = "/run/rig/told";
        world.left.run(format!(
            "rm -f {report}; (setsid {program} {next} {file} 2>{report}.new; echo status $? >>{report}.new; \
             mv {report}.new {report}) >/dev/null 2>&1 &"
        ));
        let waits = || world.left.attempt("grep ': waiting' /run/rig/told*").ok;
        let ended = || world.left.has(report);
        eventually("it reports that it waits, or ends", PATIENCE, || waits() || ended());
        assert!(!ended(), "{next} did not wait: {}", world.left.read(report));
        assert_eq!(world.left.read("/run/rig/slow"), "began\n");
        world.left.run("rm /run/rig/hold");
        eventually("it got the lock", PATIENCE, || world.left.has(report));
        let report = world.left.read(report);
        assert!(report.contains("status 0"), "{next}: {report}");
        assert!(!report.contains("reverted"), "the guardian did it: {next}: {report}");
        let order = if next == "up" { "began\nended\nnext\n" } else { "began\nended\n" };
        assert_eq!(world.left.read("/run/rig/slow"), order);
        world.left.run("rm /run/rig/slow");
        if next == "up" {
            world.reaches(&["10.9.0.2"]);
            world.down(&file);
            world.left.run("rm /run/rig/slow");
        }
    }
    world.is_as_before();
}

#[test]
fn a_hook_that_would_wait_for_itself_is_refused() {
    let world = world();
    let program = Implementation::Linerate.path();
    let program = program.display();
    let hook = |when: &str, verb: &str| {
        format!("{when} = {program} {verb} /run/rig/wg0.conf 2>>/run/rig/hooks || true\n")
    };
    let hooks = [("PreUp", "up"), ("PostUp", "down"), ("PreDown", "down"), ("PostDown", "up")]
        .map(|(when, verb)| hook(when, verb));
    let file = world.conf(&hooks.concat(), "10.9.0.0/24");
    world.up(&file);
    world.reaches(&["10.9.0.2"]);
    world.down(&file);
    let output = world.left.read("/run/rig/hooks");
    let refused = "a hook of wg0 started this command and would wait for itself";
    assert_eq!(output.matches(refused).count(), 4, "{output}");
}

#[test]
fn an_interface_without_a_process_is_used_and_one_with_a_process_refused() {
    let world = world();
    let hint = "remove it with `linerate down wg0` or `ip link delete wg0`";
    let file = world.conf("PreUp = touch /run/rig/pre-up", "10.9.0.0/24");
    world.left.run(format!("ip link add {INTERFACE} type veth peer name other0"));
    let refused = world.linerate("up", &file);
    assert!(!refused.ok && refused.stderr.contains(hint), "{}", refused.stderr);
    assert!(
        !world.left.attempt("test -e /run/rig/pre-up").ok,
        "a hook ran although up was refused"
    );
    world.left.run(format!("ip link delete {INTERFACE}"));

    world.left.run(format!("ip tuntap add dev {INTERFACE} mode tun vnet_hdr"));
    world.up(&file);
    world.reaches(&["10.9.0.2"]);
    let refused = world.linerate("up", &file);
    assert!(!refused.ok && refused.stderr.contains(hint), "{}", refused.stderr);
    // A kernel before 6.2 does not rename an interface that is up.
    if world.left.attempt(format!("ip link set {INTERFACE} name other")).ok {
        let refused = world.linerate("up", &file);
        assert!(!refused.ok && refused.stderr.contains(hint), "{}", refused.stderr);
        world.left.run(format!("ip link set other name {INTERFACE}"));
    }
    world.down(&file);
}
