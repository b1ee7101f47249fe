//! An interface that is moved to another network namespace, as on wireguard.com/netns. Its UDP socket
//! stays in the daemon's namespace.
//!
//! ```text
//!   container                 left                                right
//!   wg0  10.9.0.1/24  . . . . daemon                 . tunnel .   wg0  10.9.0.2/24
//!                             eth0 10.1.0.1/24  --- cable ---     eth0 10.1.0.2/24
//! ```

use std::{process::Command, time::Duration};

use netns::{
    Daemon, Family, Host, INTERFACE, Implementation, Key, PORT, Pair, address, conf, eventually,
    linerate, ping,
};

const PATIENCE: Duration = Duration::from_secs(10);
const SOCKET: &str = "/run/wireguard/wg0.sock";

/// Moves a device from one host's network to another's.
fn move_device(device: &str, from: &Host, to: &Host) {
    let status = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", from.pid()))
        .args(["ip", "link", "set", "dev", device, "netns", &to.pid().to_string()])
        .status();
    assert!(status.expect("nsenter is installed").success(), "{device} cannot be moved");
}

fn index_of(host: &Host, device: &str) -> String {
    host.read(&format!("/sys/class/net/{device}/ifindex")).trim().to_owned()
}

/// Configures the interface in its current namespace, with a default route through it.
fn configure(host: &Host) {
    address(host, INTERFACE, "10.9.0.1/24");
    address(host, INTERFACE, "fd00:9::1/64");
    host.run("ip link set lo up && ip link set wg0 up && ip route add default dev wg0");
}

fn carries(host: &Host, pair: &Pair) {
    eventually("packets sent into the interface arrive", PATIENCE, || {
        ping(host, "-c 1 -W 1 10.9.0.2").received == 1
    });
    eventually("packets for the interface arrive", PATIENCE, || {
        ping(&pair.right.host, "-c 1 -W 1 10.9.0.1").received == 1
    });
}

/// Whether the daemon's UDP port is open in a host's network.
fn has_port(host: &Host) -> bool {
    let wanted = format!(":{PORT:04X} ");
    host.run("cat /proc/net/udp /proc/net/udp6").lines().any(|line| line.contains(&wanted))
}

fn is_gone(host: &Host) {
    eventually("the socket is gone", PATIENCE, || !host.has(SOCKET));
    eventually("no process has the interface", PATIENCE, || !host.attempt("pgrep -x linerate").ok);
}

fn in_container() -> (Pair, Host) {
    let pair = Pair::linerate();
    pair.left.reaches(&pair.right, Family::V4, PATIENCE);
    let container = Host::new("container");
    move_device(INTERFACE, &pair.left.host, &container);
    configure(&container);
    carries(&container, &pair);
    (pair, container)
}

#[test]
fn a_moved_interface_works_in_its_new_namespace() {
    let (pair, container) = in_container();
    let left = &pair.left.host;
    assert!(!left.has_device(INTERFACE));
    assert!(has_port(left) && !has_port(&container), "the UDP socket stays in its namespace");
    assert_eq!(left.run("wg show wg0 peers").split_whitespace().count(), 1);

    container.run("ip link set wg0 down");
    eventually("the port closes with the interface", PATIENCE, || !has_port(left));
    container.run("ip link set wg0 up && ip route add default dev wg0");
    eventually("the port opens with the interface", PATIENCE, || has_port(left));
    carries(&container, &pair);

    container.run("ip link set wg0 name tunnel");
    carries(&container, &pair);
    left.run("wg set wg0 fwmark 7");
    container.run("ip link del tunnel");
    is_gone(left);
}

#[test]
fn an_interface_ends_its_daemon_when_the_container_ends() {
    let (pair, container) = in_container();
    drop(container);
    is_gone(&pair.left.host);
}

#[test]
fn linerate_down_ends_an_interface_in_another_namespace() {
    let (pair, container) = in_container();
    let outcome = linerate(&pair.left.host, "down wg0");
    assert!(outcome.ok, "{}", outcome.stderr);
    is_gone(&pair.left.host);
    eventually("the interface is gone", PATIENCE, || !container.has_device(INTERFACE));
}

#[test]
fn an_interface_moves_again_and_returns() {
    let (pair, container) = in_container();
    let left = &pair.left.host;
    move_device(INTERFACE, &container, left);
    configure(left);
    carries(left, &pair);
    left.run("ip link set wg0 down");
    eventually("the port closes with the interface", PATIENCE, || !has_port(left));
    left.run("ip link set wg0 up");
    carries(left, &pair);

    let second = Host::new("second");
    move_device(INTERFACE, left, &container);
    move_device(INTERFACE, &container, &second);
    configure(&second);
    carries(&second, &pair);
    move_device(INTERFACE, &second, left);
    configure(left);
    carries(left, &pair);
    left.run("ip link del wg0");
    is_gone(left);
}

#[test]
fn another_interface_with_the_same_index_is_unaffected() {
    let pair = Pair::linerate();
    let left = &pair.left.host;
    let (index, container) = (index_of(left, INTERFACE), Host::new("container"));
    move_device(INTERFACE, left, &container);
    configure(&container);
    left.run(format!(
        "ip link add index {index} name wg0 type veth peer name far && ip link set wg0 up"
    ));
    carries(&container, &pair);
    left.run("ip link set wg0 down");
    carries(&container, &pair);
    left.run("ip link del wg0");
    carries(&container, &pair);
    left.run(format!("ip link add index {index} name wg0 type veth peer name far"));
    let outcome = linerate(left, "down wg0");
    assert!(outcome.ok, "{}", outcome.stderr);
    is_gone(left);
    assert!(left.has_device(INTERFACE), "it was not ours");
}

/// The kernel changes an index that is already in use there.
#[test]
fn an_interface_is_found_after_its_index_changed() {
    let pair = Pair::linerate();
    let left = &pair.left.host;
    let (index, container) = (index_of(left, INTERFACE), Host::new("container"));
    container.run(format!("ip link add index {index} name other type veth peer name far"));
    move_device(INTERFACE, left, &container);
    assert_ne!(index_of(&container, INTERFACE), index);
    configure(&container);
    carries(&container, &pair);
    container.run("ip link set other up && ip link set other down && ip link del other");
    container.run("ip link set wg0 down");
    eventually("the port closes with the interface", PATIENCE, || !has_port(left));
    container.run("ip link del wg0");
    is_gone(left);
}

#[test]
fn an_interface_without_events_of_other_namespaces_works_and_ends() {
    let (left, right) = Pair::hosts(1500);
    let container = Host::new("container");
    let (left_key, right_key) = (Key::generate(), Key::generate());
    let _daemon = Daemon::start(&right, Implementation::Linerate, INTERFACE);
    let (program, log) = (Implementation::Linerate.path(), "/run/rig/start.log");
    left.run(format!(
        "setpriv --bounding-set=-net_broadcast --inh-caps=-net_broadcast {} -f wg0 \
         </dev/null >{log} 2>&1 & until wg show wg0 2>/dev/null; do sleep 0.02; done",
        program.display()
    ));
    for (host, own, other, number) in
        [(&left, &left_key, &right_key, 2), (&right, &right_key, &left_key, 1)]
    {
        let file = host.write("private.key", &own.private);
        host.run(format!(
            "wg set wg0 private-key {file} listen-port {PORT} peer {} \
             allowed-ips 10.9.0.{number} endpoint 10.1.0.{number}:{PORT}",
            other.public
        ));
    }
    right.run("ip address add 10.9.0.2/24 dev wg0 && ip link set wg0 up");
    move_device(INTERFACE, &left, &container);
    configure(&container);
    eventually("packets sent into the interface arrive", PATIENCE, || {
        ping(&container, "-c 1 -W 1 10.9.0.2").received == 1
    });
    assert!(left.read(log).contains("CAP_NET_BROADCAST"), "{}", left.read(log));
    drop(container);
    is_gone(&left);
}

#[test]
fn routes_of_a_moved_interface_do_not_affect_another_with_its_index() {
    let host = Host::new("alone");
    let [own, peer] = [Key::generate(), Key::generate()];
    let file = conf(&host, &own, &peer, "", "AllowedIPs = 10.9.0.2/32, 10.7.0.0/24");
    let outcome = linerate(&host, &format!("up {file}"));
    assert!(outcome.ok, "{}", outcome.stderr);
    assert!(host.run("ip route").contains("10.7.0.0/24 dev wg0"));
    let (index, container) = (index_of(&host, INTERFACE), Host::new("container"));
    move_device(INTERFACE, &host, &container);
    host.run(format!(
        "ip link add index {index} name other type veth peer name far && ip link set other up"
    ));
    // Adding and removing a connected network triggers a check of the routes.
    host.run("ip link add name eth0 type veth peer name far0 && ip link set eth0 up");
    host.run("ip address add 10.7.0.1/24 dev eth0 && ip link del eth0");
    // The answer follows earlier events.
    host.run("wg set wg0 listen-port 4567");
    let outcome = linerate(&host, "down wg0");
    assert!(outcome.ok, "{}", outcome.stderr);
    assert_eq!(host.run("ip route show dev other"), "");
    eventually("the interface is gone", PATIENCE, || !container.has_device(INTERFACE));
}

/// State of the host on which it was started.
#[test]
fn changes_of_up_are_undone_when_the_interface_ends_in_another_namespace() {
    let state = "ip rule; ip -6 rule; nft list ruleset; cat /etc/resolv.conf";
    for by_down in [true, false] {
        let host = Host::new("alone");
        host.run("chmod 700 /run/rig");
        host.write("resolv.conf", "nameserver 192.0.2.53\n");
        let before = host.run(state);
        let lines = "DNS = 10.9.0.2\nPostDown = echo %i >>/run/rig/hook";
        let [own, peer] = [Key::generate(), Key::generate()];
        let file = conf(&host, &own, &peer, lines, "AllowedIPs = 0.0.0.0/0, ::/0");
        let outcome = linerate(&host, &format!("up {file}"));
        assert!(outcome.ok, "{}", outcome.stderr);
        let after = host.run(state);
        for word in ["fwmark", "table inet linerate-wg0", "nameserver 10.9.0.2"] {
            assert!(after.contains(word), "no {word} in\n{after}");
        }
        let container = Host::new("container");
        move_device(INTERFACE, &host, &container);
        configure(&container);
        match by_down {
            true => {
                let outcome = linerate(&host, &format!("down {file}"));
                assert!(outcome.ok, "{}", outcome.stderr);
            }
            false => assert_eq!(container.run("ip link delete wg0"), ""),
        }
        is_gone(&host);
        eventually("PostDown ran", PATIENCE, || host.has("/run/rig/hook"));
        assert_eq!(host.read("/run/rig/hook"), "wg0\n");
        assert_eq!(host.run(state), before);
        assert!(!container.has_device(INTERFACE));
    }
}
