//! Hosts without IPv4 outside of the tunnel.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 fd01::1/64               -------- cable --------    eth0 fd01::2/64
//!                                                            lo   192.0.2.1    2001:db8::1
//! ```

use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{
    Addresses, Family, Host, Implementation, Introduction, Key, Pair, Side, address, cable, conf,
    eventually, linerate, ping,
};

use crate::gateway::page;

const PATIENCE: Duration = Duration::from_secs(15);

/// Lines of left's peer: right, as its default route.
const EVERYTHING: &str = "Endpoint = [fd01::2]:51820\nAllowedIPs = 0.0.0.0/0, ::/0";

/// Both hosts, with only IPv6.
fn hosts() -> [Host; 2] {
    let hosts = ["left", "right"].map(Host::new);
    let [left, right] = &hosts;
    cable(left, "eth0", right, "eth0", 1500);
    for (host, of) in hosts.iter().zip(["fd01::1/64", "fd01::2/64"]) {
        address(host, "eth0", of);
        assert!(!host.run("ip -4 -o address").contains("eth0"));
    }
    hosts
}

/// Left, and right with a daemon that has left's key.
fn called() -> (Host, Side, Key) {
    let [left, right] = hosts();
    let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
    for far in ["192.0.2.1/32", "2001:db8::1/128"] {
        address(&right.host, "lo", far);
    }
    let key = Key::generate();
    let peer = format!("peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public);
    right.host.run(format!("wg set wg0 {peer}"));
    left.run("chmod 700 /run/rig");
    (left, right, key)
}

#[test]
fn two_daemons_carry_both_families_from_either_start() {
    for left_only in [true, false] {
        let [left, right] = hosts();
        let linerate = Implementation::Linerate;
        let left = Side::start(left, linerate, 1, Addresses::new(1, 1));
        let right = Side::start(right, linerate, 2, Addresses::new(1, 2));
        let pair = Pair { left, right };
        let outer = Some(Family::V6);
        pair.introduce(Introduction {
            outer,
            left_only,
            right_only: !left_only,
            ..Introduction::default()
        });
        let [first, second] = match left_only {
            true => [&pair.left, &pair.right],
            false => [&pair.right, &pair.left],
        };
        for family in Family::ALL {
            first.reaches(second, family, PATIENCE);
            second.reaches(first, family, PATIENCE);
        }
    }
}

#[test]
fn a_full_tunnel_comes_up_carries_both_families_and_goes_down() {
    let (left, right, key) = called();
    let state = "ip -4 rule; ip -6 rule; ip -4 route; ip -6 route; nft list ruleset";
    let before = left.run(state);
    let file = conf(&left, &key, &right.key, "", EVERYTHING);
    let up = linerate(&left, &format!("up {file}"));
    assert!(up.ok, "{}", up.stderr);
    assert!(left.run("ip link show wg0").contains("mtu 1420"));
    for target in ["10.9.0.2", "fd09::2", "192.0.2.1", "2001:db8::1", "fd01::2"] {
        let pings = ping(&left, format!("-c 3 -i 0.1 -W 5 {target}"));
        assert!(pings.is_complete(), "{target}: {}", pings.text);
    }
    let down = linerate(&left, &format!("down {file}"));
    assert!(down.ok, "{}", down.stderr);
    assert_eq!(left.run(state), before);
}

/// A proxy that ends with its test.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended; the host's end would end it as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_proxy_with_either_stack_fetches_a_page_of_either_family() {
    for stack in ["namespace", "in-process"] {
        let (left, right, key) = called();
        page::serve(&right.host, ["192.0.2.1", "2001:db8::1"]);
        let file = conf(&left, &key, &right.key, "Socks5 = 127.0.0.1:1080", EVERYTHING);
        let program = Implementation::Linerate.path();
        let line = format!("exec {} proxy --stack {stack} {file}", program.display());
        let log = std::fs::File::create(left.outside("/run/rig/proxy.log")).expect("a log");
        let mut command = left.command("bash");
        let command = command.args(["-c", &line]).stdin(Stdio::null()).stderr(log);
        let _proxy = Proxy(command.spawn().expect("nsenter is installed (make deps)"));
        eventually("the proxy listens", PATIENCE, || left.listens(1080));
        for (host, own) in [("192.0.2.1", "10.9.0.1"), ("[2001:db8::1]", "fd09::1")] {
            let url = format!("http://{host}:{}/", page::PORT);
            let text =
                left.run(format!("curl -sS --max-time 20 -x socks5h://127.0.0.1:1080 {url}"));
            assert_eq!(text, format!("a page for {own}"), "{stack}");
        }
    }
}
