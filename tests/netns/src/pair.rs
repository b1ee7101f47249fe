//! The topology of most tests: two hosts on one cable, a daemon in each.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```

use std::fmt;
use std::time::Duration;

use crate::cable::{address, cable, forward, wait_until_local};
use crate::daemon::Daemon;
use crate::host::Host;
use crate::implementation::{Implementation, Program};
use crate::traffic::ping;
use crate::wait::eventually;
use crate::wg::{Key, PeerStatus, Status};

/// Name of every tunnel interface: each host has its own /run/wireguard.
pub const INTERFACE: &str = "wg0";

/// The UDP port of every daemon until a test changes it.
pub const PORT: u16 = 51820;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        })
    }
}

/// An address of each family, without prefix length.
#[derive(Clone, Debug)]
pub struct Addresses {
    v4: String,
    v6: String,
}

impl Addresses {
    /// `10.NET.0.HOST` and `fd0NET::HOST`.
    pub fn new(net: u8, host: u8) -> Self {
        Self { v4: format!("10.{net}.0.{host}"), v6: format!("fd{net:02}::{host}") }
    }

    /// From these two texts.
    pub fn from_texts(v4: &str, v6: &str) -> Self {
        Self { v4: v4.to_owned(), v6: v6.to_owned() }
    }

    /// The address of this family.
    pub fn of(&self, family: Family) -> &str {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The address of this family with a port, as wg(8) writes endpoints.
    pub fn endpoint(&self, family: Family, port: u16) -> String {
        match family {
            Family::V4 => format!("{}:{port}", self.v4),
            Family::V6 => format!("[{}]:{port}", self.v6),
        }
    }

    /// Both as allowed IPs: only these two addresses.
    pub fn allowed_ips(&self) -> String {
        format!("{}/32,{}/128", self.v4, self.v6)
    }

    /// Gives both to a device, as /24 and /64.
    pub fn assign(&self, host: &Host, device: &str) {
        address(host, device, &format!("{}/24", self.v4));
        address(host, device, &format!("{}/64", self.v6));
    }
}

/// One end of a tunnel.
pub struct Side {
    /// The host.
    pub host: Host,
    /// Its addresses on the cable.
    pub outer: Addresses,
    /// Its addresses in the tunnel.
    pub inner: Addresses,
    /// Its key pair.
    pub key: Key,
    /// Its daemon.
    pub daemon: Daemon,
}

impl Side {
    /// Starts a daemon in a connected host, with a new key, [`PORT`] and the inner addresses of its
    /// `number`, without peers. `outer` are its addresses for the other side.
    pub fn start(host: Host, program: impl Into<Program>, number: u8, outer: Addresses) -> Self {
        let daemon = Daemon::start(&host, program, INTERFACE);
        let (key, inner) = configure(&host, number);
        Self { host, outer, inner, key, daemon }
    }

    /// Adds the other side as a peer; `extra` goes to `wg set ... peer KEY`.
    pub fn add_peer(&self, other: &Self, extra: &str) {
        let (peer, ips) = (&other.key.public, other.inner.allowed_ips());
        self.host.run(format!("wg set {INTERFACE} peer {peer} allowed-ips {ips} {extra}"));
    }

    /// The interface's state from wg(8).
    pub fn status(&self) -> Status {
        Status::of(&self.host, INTERFACE)
    }

    /// The other side's state from wg(8).
    ///
    /// # Panics
    /// If it is not a peer.
    pub fn peer_status(&self, other: &Self) -> PeerStatus {
        let mut peers = self.status().peers;
        let index = peers.iter().position(|peer| peer.public_key == other.key.public);
        peers.swap_remove(index.expect("the other side is a peer"))
    }

    /// Pings the other side's inner address until a reply arrives.
    ///
    /// # Panics
    /// If none arrives within `within`.
    pub fn reaches(&self, other: &Self, family: Family, within: Duration) {
        let target = other.inner.of(family);
        let what = format!("{} reaches {target} through the tunnel", self.host.name());
        eventually(&what, within, || {
            ping(&self.host, format!("-c 1 -W 0.5 {target}")).is_complete()
        });
    }
}

/// Gives a host's new [`INTERFACE`] of any implementation a key, [`PORT`] and the inner addresses
/// of its `number`, and brings it up.
pub fn configure(host: &Host, number: u8) -> (Key, Addresses) {
    let key = Key::generate();
    let inner = Addresses::new(9, number);
    let path = host.write("private.key", &key.private);
    host.run(format!("wg set {INTERFACE} private-key {path} listen-port {PORT}"));
    inner.assign(host, INTERFACE);
    host.run(format!("ip link set {INTERFACE} mtu 1420 up"));
    wait_until_local(host, &inner.v6);
    (key, inner)
}

/// How two sides become peers.
#[derive(Clone, Copy, Default)]
pub struct Introduction<'a> {
    /// The outer family; `None` for IPv4.
    pub outer: Option<Family>,
    /// A preshared key for both.
    pub preshared_key: Option<&'a str>,
    /// The right side is configured without an endpoint, so only the left can start.
    pub left_only: bool,
    /// The left side is configured without an endpoint, so only the right can start.
    pub right_only: bool,
}

/// Two hosts, a cable and a daemon in each.
pub struct Pair {
    /// The side with addresses that end in 1.
    pub left: Side,
    /// The side with addresses that end in 2.
    pub right: Side,
}

impl Pair {
    /// Connects two hosts and starts a daemon in each, without peers.
    pub fn start(left: impl Into<Program>, right: impl Into<Program>) -> Self {
        let (left_host, right_host) = Self::hosts(1500);
        Self {
            left: Side::start(left_host, left, 1, Addresses::new(1, 1)),
            right: Side::start(right_host, right, 2, Addresses::new(1, 2)),
        }
    }

    /// The two hosts on their cable, without daemons.
    pub fn hosts(mtu: u32) -> (Host, Host) {
        let (left, right) = (Host::new("left"), Host::new("right"));
        cable(&left, "eth0", &right, "eth0", mtu);
        Addresses::new(1, 1).assign(&left, "eth0");
        Addresses::new(1, 2).assign(&right, "eth0");
        (left, right)
    }

    /// Two hosts with a router between them, without daemons:
    ///
    /// ```text
    ///   left  10.1.0.1 ---- 10.1.0.254  router  10.2.0.254 ---- 10.2.0.2  right
    ///   eth0  fd01::1  ---- fd01::254  r1    r2  fd02::254 ---- fd02::2   eth0
    /// ```
    pub fn routed_hosts() -> (Host, Host, Host) {
        let (left, router, right) = (Host::new("left"), Host::new("router"), Host::new("right"));
        for (number, end, device) in [(1, &left, "r1"), (2, &right, "r2")] {
            cable(end, "eth0", &router, device, 1500);
            Addresses::new(number, number).assign(end, "eth0");
            let gateway = Addresses::new(number, 254);
            gateway.assign(&router, device);
            for family in Family::ALL {
                end.run(format!("ip route add default via {}", gateway.of(family)));
            }
        }
        forward(&router);
        (left, router, right)
    }

    /// Starts a linerate at both ends of [`Pair::routed_hosts`], without peers.
    pub fn routed() -> (Self, Host) {
        let (left, router, right) = Self::routed_hosts();
        let linerate = Implementation::Linerate;
        let left = Side::start(left, linerate, 1, Addresses::new(1, 1));
        let right = Side::start(right, linerate, 2, Addresses::new(2, 2));
        (Self { left, right }, router)
    }

    /// Two linerates as peers, over IPv4.
    pub fn linerate() -> Self {
        let pair = Self::start(Implementation::Linerate, Implementation::Linerate);
        pair.introduce(Introduction::default());
        pair
    }

    /// Makes each side the other's peer.
    pub fn introduce(&self, introduction: Introduction<'_>) {
        let (left, right) = (&self.left, &self.right);
        left.add_peer(right, &words(left, right, &introduction, !introduction.right_only));
        right.add_peer(left, &words(right, left, &introduction, !introduction.left_only));
    }
}

fn words(side: &Side, other: &Side, introduction: &Introduction<'_>, has_endpoint: bool) -> String {
    let mut words = String::new();
    if let Some(key) = introduction.preshared_key {
        words += &format!("preshared-key {} ", side.host.write("preshared.key", key));
    }
    if has_endpoint {
        let family = introduction.outer.unwrap_or(Family::V4);
        words += &format!("endpoint {}", other.outer.endpoint(family, PORT));
    }
    words
}
