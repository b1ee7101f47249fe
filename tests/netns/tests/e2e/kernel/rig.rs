//! The two hosts and the guest, and a tunnel between linerate and the kernel.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{
    Addresses, Datagrams, Family, Guest, Host, INTERFACE, Implementation, Introduction, Key, PORT,
    Pace, PeerStatus, Side, Status, Stream, Train, eventually, ping,
};

/// Time for a second handshake attempt, and for a guest without processor time for a while.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of each stream.
const STREAM: u64 = 500_000;

/// Two hosts with a guest between them.
pub(super) struct Rig {
    pub left: Host,
    pub right: Host,
    pub guest: Guest,
}

impl Rig {
    pub(super) fn boot() -> Self {
        let (left, right) = (Host::new("left"), Host::new("right"));
        let guest = Guest::boot(&left, "eth0", &right);
        Self { left, right, guest }
    }
}

/// A tunnel between a new linerate and a new interface of the guest's kernel.
pub(super) struct Tunnel<'a> {
    pub rig: &'a Rig,
    pub left: Side,
    /// The guest's key.
    pub key: Key,
    /// The guest's outer addresses.
    pub outer: Addresses,
}

impl<'a> Tunnel<'a> {
    /// Makes both ends peers of each other. The guest is the right side of `introduction`.
    pub(super) fn start(rig: &'a Rig, introduction: Introduction<'_>) -> Self {
        let left = Side::start(rig.left.clone(), Implementation::Linerate, 1, Addresses::new(1, 1));
        let tunnel = Tunnel { rig, left, key: Key::generate(), outer: Addresses::new(1, 2) };
        tunnel.configure_guest(introduction);
        let psk = introduction.preshared_key.map(|key| rig.left.write("preshared.key", key));
        let psk = psk.map_or(String::new(), |path| format!("preshared-key {path}"));
        tunnel.set_peer(&psk);
        if !introduction.right_only {
            tunnel.set_endpoint(introduction.outer.unwrap_or(Family::V4));
        }
        for behind in ["10.4.0.0/24", "fd04::/64"] {
            rig.left.run(format!("ip route add {behind} dev {INTERFACE}"));
        }
        tunnel
    }

    /// Gives the guest a new interface with linerate as its peer.
    pub(super) fn configure_guest(&self, introduction: Introduction<'_>) {
        let guest = &self.rig.guest;
        guest.attempt(format!("ip link del {INTERFACE}"));
        guest.run(format!("ip link add {INTERFACE} type wireguard"));
        guest.run(format!("echo {} >/tmp/key", self.key.private));
        guest.run(format!("wg set {INTERFACE} private-key /tmp/key listen-port {PORT}"));
        guest.assign(INTERFACE, &Addresses::new(9, 2));
        let mut words = format!("allowed-ips {}", self.left.inner.allowed_ips());
        if let Some(key) = introduction.preshared_key {
            guest.run(format!("echo {key} >/tmp/psk"));
            words += " preshared-key /tmp/psk";
        }
        if !introduction.left_only {
            let outer = introduction.outer.unwrap_or(Family::V4);
            words += &format!(" endpoint {}", self.left.outer.endpoint(outer, PORT));
        }
        guest.run(format!("wg set {INTERFACE} peer {} {words}", self.left.key.public));
    }

    /// Makes the guest a peer of linerate; `extra` goes to `wg set ... peer KEY`.
    pub(super) fn set_peer(&self, extra: &str) {
        let (peer, inner) = (&self.key.public, Addresses::new(9, 2).allowed_ips());
        self.rig.left.run(format!(
            "wg set {INTERFACE} peer {peer} allowed-ips {inner},10.4.0.0/24,fd04::/64 {extra}"
        ));
    }

    /// Sets the guest's endpoint at linerate.
    pub(super) fn set_endpoint(&self, outer: Family) {
        let (peer, endpoint) = (&self.key.public, self.outer.endpoint(outer, PORT));
        self.rig.left.run(format!("wg set {INTERFACE} peer {peer} endpoint {endpoint}"));
    }

    /// The guest's state at linerate.
    pub(super) fn state_at_linerate(&self) -> PeerStatus {
        Status::of(&self.rig.left, INTERFACE).peers.swap_remove(0)
    }

    /// linerate's state at the guest's kernel.
    pub(super) fn state_at_kernel(&self) -> PeerStatus {
        let dump = self.rig.guest.run(format!("wg show {INTERFACE} dump"));
        Status::parse(&dump).peers.swap_remove(0)
    }

    /// A counter of the guest's interface.
    pub(super) fn kernel_counts(&self, counter: &str) -> u64 {
        let path = format!("/sys/class/net/{INTERFACE}/statistics/{counter}");
        let text = self.rig.guest.run(format!("cat {path}"));
        text.trim().parse().expect("a count is a number")
    }

    /// Pings from the starting end until a reply arrives.
    pub(super) fn opens(&self, from: Family, by_kernel: bool) {
        let (host, target) = self.source_and_target(from, by_kernel);
        eventually("the tunnel opens", PATIENCE, || {
            ping(host, format!("-c 1 -W 1 {target}")).is_complete()
        });
    }

    /// The sending host, and the target address.
    fn source_and_target(&self, inner: Family, by_kernel: bool) -> (&'a Host, String) {
        let (host, target) = match by_kernel {
            true => (&self.rig.right, self.left.inner.clone()),
            false => (&self.rig.left, Addresses::new(4, 2)),
        };
        (host, target.of(inner).to_owned())
    }

    /// Sends ping, TCP and UDP of both families in both directions, and checks that all arrives
    /// unchanged.
    pub(super) fn carries_everything(&self) {
        for inner in Family::ALL {
            for by_kernel in [false, true] {
                let (from, target) = self.source_and_target(inner, by_kernel);
                let what = format!("inside {inner}, from {}", from.name());
                let pings = ping(from, format!("-c 3 -i 0.05 -W 5 -s 1200 {target}"));
                assert!(pings.is_complete(), "{what}: {}", pings.text);
                let to = if by_kernel { &self.rig.left } else { &self.rig.right };
                streams(&what, from, to, socket(&target, 7000));
                send_datagrams(&what, from, to, socket(&target, 7001));
            }
        }
    }
}

/// An address with a port.
pub(super) fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

fn streams(what: &str, from: &Host, to: &Host, address: SocketAddr) {
    let pace = Pace { bytes: Some(STREAM), ..Pace::FULL };
    let carried = Stream::start(from, to, address, pace).finish();
    assert_eq!((carried.sent, carried.received), (STREAM, STREAM), "{what}");
}

fn send_datagrams(what: &str, from: &Host, to: &Host, address: SocketAddr) {
    let rest = Duration::from_millis(20);
    let train = Train { count: 8, size: 1200, segmented: false, rest };
    let datagrams = Datagrams::start(from, to, address, train);
    thread::sleep(Duration::from_millis(400));
    let arrived = datagrams.finish();
    // UDP may lose some datagrams at a slow guest.
    assert!(arrived.received > 0 && arrived.lost() < 0.1, "{what}: {arrived:?}");
    assert_eq!(arrived.doubled, 0, "{what}: {arrived:?}");
}
