//! Hosts with restrictions: a container with a read-only `/proc/sys`, a host without IPv6, files
//! that the user of a container owns.

use std::net::UdpSocket;

use netns::{PORT, lacks_users, linerate};

use crate::up::{WORLD, World, state, world};

/// Makes `/proc/sys` read-only, as container engines do, after these settings.
fn read_only_settings(world: &mut World, settings: &[(&str, &str)]) {
    for (key, value) in settings {
        world.left.run(format!("echo {value} >/proc/sys/{key}"));
    }
    world.left.run("mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys");
    world.before = state(&world.left);
}

const STRICT: &str = "net/ipv4/conf/eth0/rp_filter";

#[test]
fn src_valid_mark_that_is_read_only_is_not_mentioned_without_a_strict_filter() {
    for settings in [&[(STRICT, "0")][..], &[(STRICT, "1"), ("net/ipv4/conf/all/rp_filter", "2")]] {
        let mut world = world();
        read_only_settings(&mut world, settings);
        let file = world.conf("", "0.0.0.0/0, ::/0");
        let outcome = world.linerate("up", &file);
        assert!(outcome.ok && outcome.stderr.is_empty(), "{settings:?}: {}", outcome.stderr);
        world.reaches(&WORLD);
        world.down(&file);
    }
}

#[test]
fn src_valid_mark_that_is_read_only_gets_a_warning_with_a_strict_filter() {
    let mut world = world();
    read_only_settings(&mut world, &[(STRICT, "1")]);
    let file = world.conf("", "0.0.0.0/0");
    let outcome = world.linerate("up", &file);
    let wanted = "--sysctl net.ipv4.conf.all.src_valid_mark=1";
    assert!(outcome.ok && outcome.stderr.contains(wanted), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("eth0 drops"), "{}", outcome.stderr);
    assert!(world.left.run("ip -4 route show table 51820").contains("default dev wg0"));
    world.down(&file);
}

#[test]
fn forwarding_that_is_read_only_gets_a_warning_and_the_tunnel_comes_up() {
    let mut world = world();
    let settings = [("net/ipv4/ip_forward", "0"), ("net/ipv6/conf/eth0/accept_ra", "1")];
    read_only_settings(&mut world, &settings);
    let file = world.conf("OfferRoutes = 10.0.0.0/8, fd00::/8\nIpForward = true", "10.9.0.2/32");
    let outcome = world.linerate("up", &file);
    assert!(outcome.ok, "{}", outcome.stderr);
    for wanted in ["--sysctl net.ipv4.ip_forward=1", "--sysctl net.ipv6.conf.all.forwarding=1"] {
        assert!(outcome.stderr.contains(wanted), "no `{wanted}` in {}", outcome.stderr);
    }
    world.down(&file);
}

#[test]
fn a_file_for_both_families_comes_up_without_ipv6_if_that_is_off() {
    let mut world = world();
    world
        .left
        .run("for i in all default; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done");
    world.before = state(&world.left);
    let file = world.conf("", "0.0.0.0/0, ::/0, 10.8.0.0/16, fd08::/16");
    let outcome = world.linerate("up", &file);
    assert!(outcome.ok, "{}", outcome.stderr);
    let wanted = format!("{file}:3: Address: IPv6 is off on this host");
    assert!(outcome.stderr.contains(&wanted), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    world.reaches(&[WORLD[0]]);
    assert_eq!(
        world.left.run("ip -6 rule | grep -c lookup || true").trim(),
        "2",
        "no rule is added"
    );
    world.down(&file);

    world.left.run(format!("sed -i 's/, fd09::1.*//' {file}"));
    let outcome = world.linerate("up", &file);
    let wanted = format!("{file}:8: AllowedIPs: IPv6 is off on this host");
    assert!(outcome.ok && outcome.stderr.contains(&wanted), "{}", outcome.stderr);
    world.down(&file);
}

#[test]
fn packets_of_ipv6_that_leave_outside_of_the_tunnel_are_in_the_warning() {
    let world = world();
    world.left.run("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    world.left.run("ip -6 route add default via fd01::2");
    // The settings may be hidden in a container.
    world.left.run("mount -t tmpfs tmpfs /proc/sys/net/ipv6");
    let file = world.conf("", "0.0.0.0/0, ::/0");
    let outcome = world.linerate("up", &file);
    let wanted = "IPv6 packets leave this host outside of the tunnel";
    assert!(outcome.ok && outcome.stderr.contains(wanted), "{}", outcome.stderr);
    world.reaches(&[WORLD[0]]);
    assert!(world.linerate("down", &file).ok);
}

#[test]
fn a_file_for_ipv6_alone_is_refused_if_that_is_off() {
    let world = world();
    world.left.run("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    let file = world.conf("", "10.9.0.0/24");
    world.left.run(format!("sed -i 's/10.9.0.1.24, //' {file}"));
    let outcome = world.linerate("up", &file);
    let wanted = format!("{file}:3: Address: IPv6 is off on this host");
    assert!(!outcome.ok && outcome.stderr.contains(&wanted), "{outcome:?}");
    world.is_as_before();
}

#[test]
fn an_error_of_the_kernel_has_file_line_and_key() {
    let world = world();
    let taken = world.left.inside(|| UdpSocket::bind(("0.0.0.0", PORT))).unwrap();
    world.left.run("ip route add 10.7.0.0/16 dev eth0 table 1234");
    for (lines, allowed_ips, wanted) in [
        ("Address = 10.9.0.1/24", "10.9.0.2/32", "4: Address: 10.9.0.1/24: File exists"),
        ("Address = ff02::1/64", "10.9.0.2/32", "4: Address: ff02::1/64: "),
        (
            "Table = 1234",
            "10.8.0.0/16, 10.7.0.0/16",
            "8: AllowedIPs: route to 10.7.0.0/16: File exists",
        ),
        (
            "MTU = 1200",
            "10.9.0.2/32, fd08::/16",
            "4: MTU: IPv6 takes an MTU of 1280 or more: route to fd08::/16: ",
        ),
        (&format!("ListenPort = {PORT}"), "10.9.0.2/32", "4: ListenPort: the port is in use"),
    ] {
        let file = world.conf(lines, allowed_ips);
        let outcome = world.linerate("up", &file);
        let wanted = format!("{file}:{wanted}");
        assert!(!outcome.ok && outcome.stderr.contains(&wanted), "no `{wanted}` in {outcome:?}");
    }
    drop(taken);
    world.left.run("ip route del 10.7.0.0/16 dev eth0 table 1234");
    world.is_as_before();
}

#[test]
fn hooks_of_another_user_run_if_an_option_allows_them() {
    if lacks_users() {
        return;
    }
    let world = world();
    let hooks = "PostUp = touch /run/rig/up-%i\nPostDown = touch /run/rig/down-%i";
    let file = world.conf(hooks, "10.9.0.0/24");
    world.left.run(format!("chown 1000 {file} /run/rig"));
    for option in ["", "--allow-hooks-of 1001 "] {
        let outcome = linerate(&world.left, &format!("up {option}{file}"));
        let wanted = "a file that another user owns (uid 1000); allow it by `chown root`, or trust \
                      that user: `linerate up --allow-hooks-of 1000`";
        assert!(!outcome.ok && outcome.stderr.contains(wanted), "{outcome:?}");
        assert!(!world.left.has("/run/rig/up-wg0"));
    }
    let outcome = linerate(&world.left, &format!("up --allow-hooks-of 1000 {file}"));
    assert!(outcome.ok && world.left.has("/run/rig/up-wg0"), "{outcome:?}");
    world.down(&file);
    assert!(world.left.has("/run/rig/down-wg0"));

    world.left.run(format!("chmod 664 {file}"));
    let outcome = linerate(&world.left, &format!("up --allow-hooks-of 1000 {file}"));
    assert!(!outcome.ok && outcome.stderr.contains("mode 664"), "others may write: {outcome:?}");
}
