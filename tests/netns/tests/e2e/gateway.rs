//! A client that sends all traffic through an exit node, and routers at both ends of a tunnel.
//!
//! ```text
//!   client              net                  exit                           world
//!   wg0 10.9.0.1 . . . . . . . . tunnel . . . wg0 10.9.0.2
//!   eth0 10.1.0.1 ---- r1   r2 ---- 10.2.0.2 eth0   eth1 10.12.0.1 ---- 10.12.0.2 eth0
//!        fd01::1                      fd02::2            fd12::1         fd12::2
//! ```
//!
//! The world has no route to the tunnel: it only answers the exit's address.

mod docker;
mod full_tunnel;
mod outside;
pub(crate) mod page;
mod router;

use std::time::Duration;

use netns::{
    Addresses, Family, Host, INTERFACE, Key, Pair, address, cable, linerate, ping, wait_until_local,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// The world's addresses, and the exit's addresses there.
const WORLD: [&str; 2] = ["10.12.0.2", "fd12::2"];
const EXIT: [&str; 2] = ["10.12.0.1", "fd12::1"];

/// The hosts, without tunnels.
struct Hosts {
    client: Host,
    net: Host,
    exit: Host,
    world: Host,
    keys: [Key; 2],
}

impl Hosts {
    fn new() -> Self {
        let (client, net, exit) = Pair::routed_hosts();
        let world = Host::new("world");
        cable(&exit, "eth1", &world, "eth0", 1500);
        for (host, device, [v4, v6]) in [(&exit, "eth1", EXIT), (&world, "eth0", WORLD)] {
            address(host, device, &format!("{v4}/24"));
            address(host, device, &format!("{v6}/64"));
        }
        for host in [&client, &exit] {
            host.run("chmod 700 /run/rig");
        }
        Self { client, net, exit, world, keys: [Key::generate(), Key::generate()] }
    }

    /// Brings the client up: `lines` in `[Interface]`, and the exit as its peer.
    fn client_up(&self, outer: Family, lines: &str, allowed_ips: &str) -> String {
        let endpoint = Addresses::new(2, 2).endpoint(outer, netns::PORT);
        let peer = format!("Endpoint = {endpoint}\nAllowedIPs = {allowed_ips}");
        up(&self.client, 1, (&self.keys[0], &self.keys[1]), lines, &peer)
    }

    /// Brings the exit up, with the client as its only peer.
    fn exit_up(&self, lines: &str, allowed_ips: &str) -> String {
        let lines = format!("ListenPort = {}\n{lines}", netns::PORT);
        let peer = format!("AllowedIPs = {allowed_ips}");
        up(&self.exit, 2, (&self.keys[1], &self.keys[0]), &lines, &peer)
    }
}

/// `linerate up` with the inner addresses of this number. Returns the output.
fn up(host: &Host, number: u8, (own, other): (&Key, &Key), lines: &str, peer: &str) -> String {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.{number}/24, fd09::{number}/64\n{lines}\n\
         [Peer]\nPublicKey = {}\n{peer}\n",
        own.private, other.public
    );
    let file = host.write_secret(&format!("{INTERFACE}.conf"), &text);
    let outcome = linerate(host, &format!("up {file}"));
    assert!(outcome.ok, "on {}: {}", host.name(), outcome.stderr);
    wait_until_local(host, &format!("fd09::{number}"));
    outcome.stderr
}

fn down(host: &Host) {
    let outcome = linerate(host, &format!("down {INTERFACE}"));
    assert!(outcome.ok, "on {}: {}", host.name(), outcome.stderr);
}

/// Whether at least one of a few pings is answered.
fn answers(from: &Host, target: &str) -> bool {
    ping(from, format!("-c 3 -i 0.1 -W 1 {target}")).received > 0
}
