//! The two hosts and the guest, and a tunnel between linerate and the kernel.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{
    Addresses, Datagrams, Family, Guest, Host, INTERFACE, Implementation, Key, Meeting, PORT, Pace,
    PeerStatus, Side, Status, Stream, Train, eventually, ping,
};

/// Long enough for a second try of a handshake, and for a guest that has no processor for a while.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes that each stream carries.
const STREAM: u64 = 500_000;

/// Two hosts with a guest between them.
pub struct Rig {
    pub left: Host,
    pub right: Host,
    pub guest: Guest,
}

impl Rig {
    pub fn boot() -> Rig {
        let (left, right) = (Host::new("left"), Host::new("right"));
        let guest = Guest::boot(&left, "eth0", &right);
        Rig { left, right, guest }
    }
}

/// A tunnel between a new linerate and a new interface of the guest's kernel.
pub struct Tunnel<'a> {
    pub rig: &'a Rig,
    pub left: Side,
    /// The guest's.
    pub key: Key,
    /// Where the guest is, outside.
    pub outer: Addresses,
}

impl<'a> Tunnel<'a> {
    /// Makes both ends peers of each other. The right one of `meeting` is the guest.
    pub fn start(rig: &'a Rig, meeting: Meeting<'_>) -> Tunnel<'a> {
        let left = Side::start(rig.left.clone(), Implementation::Linerate, 1, Addresses::new(1, 1));
        let tunnel = Tunnel { rig, left, key: Key::generate(), outer: Addresses::new(1, 2) };
        tunnel.configure_guest(meeting);
        let psk = meeting.preshared_key.map(|key| rig.left.write("preshared.key", key));
        let psk = psk.map_or(String::new(), |path| format!("preshared-key {path}"));
        tunnel.set_peer(&psk);
        if !meeting.right_only {
            tunnel.call(meeting.outer.unwrap_or(Family::V4));
        }
        for behind in ["10.4.0.0/24", "fd04::/64"] {
            rig.left.run(format!("ip route add {behind} dev {INTERFACE}"));
        }
        tunnel
    }

    /// Gives the guest a new interface with linerate as its peer.
    pub fn configure_guest(&self, meeting: Meeting<'_>) {
        let guest = &self.rig.guest;
        guest.attempt(format!("ip link del {INTERFACE}"));
        guest.run(format!("ip link add {INTERFACE} type wireguard"));
        guest.run(format!("echo {} >/tmp/key", self.key.private));
        guest.run(format!("wg set {INTERFACE} private-key /tmp/key listen-port {PORT}"));
        guest.assign(INTERFACE, &Addresses::new(9, 2));
        let mut words = format!("allowed-ips {}", self.left.inner.allowed_ips());
        if let Some(key) = meeting.preshared_key {
            guest.run(format!("echo {key} >/tmp/psk"));
            words += " preshared-key /tmp/psk";
        }
        if !meeting.left_only {
            let outer = meeting.outer.unwrap_or(Family::V4);
            words += &format!(" endpoint {}", self.left.outer.endpoint(outer, PORT));
        }
        guest.run(format!("wg set {INTERFACE} peer {} {words}", self.left.key.public));
    }

    /// Makes the guest a peer of linerate's; `extra` goes to `wg set ... peer KEY`.
    pub fn set_peer(&self, extra: &str) {
        let (peer, inner) = (&self.key.public, Addresses::new(9, 2).allowed_ips());
        self.rig.left.run(format!(
            "wg set {INTERFACE} peer {peer} allowed-ips {inner},10.4.0.0/24,fd04::/64 {extra}"
        ));
    }

    /// Tells linerate where the guest is.
    pub fn call(&self, outer: Family) {
        let (peer, endpoint) = (&self.key.public, self.outer.endpoint(outer, PORT));
        self.rig.left.run(format!("wg set {INTERFACE} peer {peer} endpoint {endpoint}"));
    }

    /// What linerate says of the guest.
    pub fn seen_by_linerate(&self) -> PeerStatus {
        Status::of(&self.rig.left, INTERFACE).peers.swap_remove(0)
    }

    /// What the guest's kernel says of linerate.
    pub fn seen_by_kernel(&self) -> PeerStatus {
        let dump = self.rig.guest.run(format!("wg show {INTERFACE} dump"));
        Status::parse(&dump).peers.swap_remove(0)
    }

    /// A counter of the guest's interface.
    pub fn kernel_counts(&self, counter: &str) -> u64 {
        let path = format!("/sys/class/net/{INTERFACE}/statistics/{counter}");
        let text = self.rig.guest.run(format!("cat {path}"));
        text.trim().parse().expect("a count is a number")
    }

    /// Pings from the end that starts, until a reply comes.
    pub fn opens(&self, from: Family, by_kernel: bool) {
        let (host, target) = self.way(from, by_kernel);
        eventually("the tunnel opens", PATIENCE, || {
            ping(host, format!("-c 1 -W 1 {target}")).is_complete()
        });
    }

    /// The host that sends, and where to.
    fn way(&self, inner: Family, by_kernel: bool) -> (&'a Host, String) {
        let (host, target) = match by_kernel {
            true => (&self.rig.right, self.left.inner.clone()),
            false => (&self.rig.left, Addresses::new(4, 2)),
        };
        (host, target.of(inner).to_owned())
    }

    /// Sends ping, TCP and UDP of both families both ways, and sees that all arrives unchanged.
    pub fn carries_everything(&self) {
        for inner in Family::ALL {
            for by_kernel in [false, true] {
                let (from, target) = self.way(inner, by_kernel);
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
pub fn socket(address: &str, port: u16) -> SocketAddr {
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
    // UDP may lose some to a guest that is slow.
    assert!(arrived.received > 0 && arrived.lost() < 0.1, "{what}: {arrived:?}");
    assert_eq!(arrived.doubled, 0, "{what}: {arrived:?}");
}
