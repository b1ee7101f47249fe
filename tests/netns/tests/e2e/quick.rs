//! The unmodified wg-quick(8) with linerate as its implementation, and all of its changes.
//!
//! ```text
//!   left: wg-quick up wg0.conf                               right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//!                                                            lo   192.0.2.1    2001:db8::1
//! ```
//!
//! The two addresses on right's `lo` stand for the world behind a default route.

mod battery;
mod dns;
mod full_tunnel;
mod hooks;
mod save;
mod twin;

use std::time::Duration;

use netns::{
    Addresses, Host, INTERFACE, Implementation, Key, Outcome, Pair, Side, address, conf,
    eventually, logged, ping, wait_until_local, wg_quick,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// Addresses behind the tunnel: right itself, and the world.
const INNER: [&str; 2] = ["10.9.0.2", "fd09::2"];
const WORLD: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// The command line for wg-quick.
const OWN_INNER_V6: &str = "fd09::1";

struct Quick {
    left: Host,
    right: Side,
    key: Key,
    /// Both hosts; the right one has left's key.
    program: String,
    before: String,
}

impl Quick {
    /// Writes wg0.conf: keys, addresses, these further lines and the peer with these allowed IPs.
    fn new() -> Self {
        let (left, right) = Pair::hosts(1500);
        let right = Side::start(right, Implementation::Linerate, 2, Addresses::new(1, 2));
        for far in ["192.0.2.1/32", "2001:db8::1/128"] {
            address(&right.host, "lo", far);
        }
        let key = Key::generate();
        let peer = format!("peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public);
        right.host.run(format!("wg set {INTERFACE} {peer}"));
        left.run("chmod 700 /run/rig");
        let program = wg_quick(&left);
        let before = state(&left);
        Self { left, right, key, program, before }
    }

    /// Runs wg-quick by this wrapper. The output is in `stderr`.
    fn conf(&self, interface_lines: &str, allowed_ips: &str) -> String {
        let peer = format!("Endpoint = 10.1.0.2:51820\nAllowedIPs = {allowed_ips}");
        conf(&self.left, &self.key, &self.right.key, interface_lines, &peer)
    }

    /// `wg-quick down`, and checks that everything is restored.
    fn quick(&self, behind: &str, arguments: &str) -> Outcome {
        logged(&self.left, &format!("{behind} {} {arguments}", self.program))
    }

    fn up(&self, file: &str) {
        let outcome = self.quick("", &format!("up {file}"));
        assert!(outcome.ok, "{}", outcome.stderr);
        assert!(self.left.daemon_of(INTERFACE).is_some(), "linerate does not run the interface");
    }

    /// The state that wg-quick may change and must restore. Empty tables of iptables remain.
    fn down(&self, file: &str) {
        let outcome = self.quick("", &format!("down {file}"));
        assert!(outcome.ok, "{}", outcome.stderr);
        self.is_as_before();
    }

    fn is_as_before(&self) {
        assert!(!self.left.has_device(INTERFACE));
        let is_gone = || self.left.daemon_of(INTERFACE).is_none();
        eventually("the daemon is gone", PATIENCE, is_gone);
        let socket = format!("/run/wireguard/{INTERFACE}.sock");
        eventually("the socket is gone", PATIENCE, || !self.left.has(&socket));
        assert_eq!(state(&self.left), self.before);
    }

    fn reaches(&self, targets: &[&str]) {
        for target in targets {
            if target.contains(':') {
                wait_until_local(&self.left, OWN_INNER_V6);
            }
            let pings = ping(&self.left, format!("-c 3 -i 0.1 -W 5 {target}"));
            assert!(pings.is_complete(), "{target}: {}", pings.text);
        }
    }
}

/// All that wg-quick may change, and has to put back. The empty tables of iptables remain.
fn state(host: &Host) -> String {
    host.run(
        "for family in -4 -6; do ip $family route show table all; ip $family rule; done; \
         ip -o address | grep -v ' lo '; cat /etc/resolv.conf; nft list tables | grep -vE ' (raw|mangle|filter|nat)$'; \
         iptables-save | grep ^-; ip6tables-save | grep ^-; true",
    )
}
