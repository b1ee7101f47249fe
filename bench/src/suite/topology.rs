//! Two hosts, on one cable or with an emulated link between them, and the tunnel between them.

use netns::{
    Addresses, Daemon, Family, Host, INTERFACE, Key, Member, PORT, Pair, Path, Service, cable,
    configure, eventually, ping,
};

use super::tailscaled::{Direct, Tailnet};
use super::{PATIENCE, Server};
use crate::contender::{Carrier, Contender, Tailscaled};
use crate::link::Dropped;
use netns::Processes;

/// One end of the tunnel.
pub(super) struct End {
    pub host: Host,
    /// Its address for the other end, outside of the tunnel.
    pub outer: Addresses,
    /// Its address inside of the tunnel; the same for a bare cable.
    pub inner: Addresses,
    /// WireGuard's key, if the rig configures it.
    pub key: Option<Key>,
    /// The device by which packets to the other end leave.
    pub device: &'static str,
    /// The daemon of the tunnel, if there is one.
    pub daemon: Option<Running>,
}

/// A daemon of a tunnel.
pub(super) enum Running {
    /// A daemon that wg(8) configures.
    WireGuard(Daemon),
    /// tailscaled.
    Tailscaled(Service),
    /// A member of a tailnet of a real headscale.
    Member(Member),
}

impl Running {
    /// Its pid inside its host.
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::WireGuard(daemon) => daemon.pid(),
            Self::Tailscaled(service) => service.pid(),
            Self::Member(member) => member.pid(),
        }
    }
}

/// Both ends and the link.
pub(super) struct Ends {
    pub left: End,
    pub right: End,
    pub link: Option<EmulatedLink>,
    tailnet: Option<(Direct, Service)>,
}

/// The hosts and the link.
pub(super) struct Wired {
    pub left: Host,
    pub right: Host,
    pub link: Option<EmulatedLink>,
}

/// The link of `crate::link`, on its own host.
pub(super) struct EmulatedLink {
    relay: Option<Server>,
    pub(super) host: Host,
    /// Drops of earlier relay processes.
    dropped: Dropped,
}

impl End {
    /// Starts the contender on a connected host.
    fn start(host: Host, contender: &Contender, number: u8, outer: Addresses) -> Self {
        let daemon = match &contender.carrier {
            Carrier::Bare => {
                let inner = outer.clone();
                return Self { host, outer, inner, key: None, device: "eth0", daemon: None };
            }
            Carrier::Kernel => {
                host.run(format!("ip link add {INTERFACE} type wireguard"));
                None
            }
            Carrier::Daemon(program) => {
                let daemon = Daemon::start(&host, program.clone(), INTERFACE);
                Some(Running::WireGuard(daemon))
            }
            Carrier::Tailscaled(_) | Carrier::Headscale(_) => {
                unreachable!("its ends start together, or there is no daemon")
            }
        };
        let (key, inner) = configure(&host, number);
        Self { host, outer, inner, key: Some(key), device: INTERFACE, daemon }
    }

    /// The daemon and its helpers.
    pub(super) fn processes(&self) -> Option<Processes> {
        Some(Processes::of(&self.host, self.daemon.as_ref()?.pid()))
    }

    /// Their private memory in bytes; NaN if not available.
    pub(super) fn private_memory(&self) -> f64 {
        let memory = self.processes().and_then(|all| all.memory());
        memory.map_or(f64::NAN, |memory| memory.private)
    }

    /// Adds the other end as the last peer, with these networks in addition to its own addresses.
    pub(super) fn add_peer(&self, other: &Self, networks: &str) {
        let Some(key) = &other.key else { return };
        let (peer, ips) = (&key.public, other.inner.allowed_ips());
        let endpoint = other.outer.endpoint(Family::V4, PORT);
        self.host.run(format!(
            "wg set {INTERFACE} peer {peer} allowed-ips {ips}{networks} endpoint {endpoint}"
        ));
    }

    /// Adds a route to a network by the other end.
    pub(super) fn route_to(&self, other: &Self, network: &str) {
        let path = match self.key {
            Some(_) => format!("dev {INTERFACE}"),
            None => format!("via {}", other.outer.of(Family::V4)),
        };
        self.host.run(format!("ip route add {network} {path}"));
    }
}

impl Ends {
    /// Starts the contender on both hosts and waits until they connect. `link` is in the syntax of
    /// `Shape::parse`.
    ///
    /// # Panics
    /// If no packet passes.
    pub(super) fn start(contender: &Contender, link: Option<&str>) -> Self {
        if let Carrier::Tailscaled(programs) = &contender.carrier {
            return Self::tailnet(programs, link);
        }
        let wired = Wired::new(link);
        let [of_right, of_left] = wired.outer();
        let Wired { left, right, link } = wired;
        let ends = Self {
            left: End::start(left, contender, 1, of_left),
            right: End::start(right, contender, 2, of_right),
            link,
            tailnet: None,
        };
        ends.left.add_peer(&ends.right, "");
        ends.right.add_peer(&ends.left, "");
        ends.wait_until_connected();
        ends
    }

    /// tailscaled at both ends, each with a TUN device with the MTU of the other contenders: its
    /// own is 1280.
    fn tailnet(programs: &Tailscaled, link: Option<&str>) -> Self {
        let wired = Wired::new(link);
        let [of_right, of_left] = wired.outer();
        let Wired { left, right, link } = wired;
        let tun = format!("--tun={INTERFACE}");
        let tun = [tun.as_str()];
        let words = [&tun[..]; 2];
        let Tailnet { daemons, control, addresses, direct } =
            Tailnet::start(programs, [&left, &right], link.as_ref(), &["TS_DEBUG_MTU=1420"], words);
        let [left, right] = {
            let outer = [of_left, of_right].into_iter().zip(addresses);
            let mut ends = [left, right].into_iter().zip(outer).zip(daemons).map(
                |((host, (outer, inner)), daemon)| {
                    let daemon = Some(Running::Tailscaled(daemon));
                    End { host, outer, inner, key: None, device: INTERFACE, daemon }
                },
            );
            [(); 2].map(|()| ends.next().expect("there are two ends"))
        };
        let ends = Self { left, right, link, tailnet: Some((direct, control)) };
        ends.wait_until_connected();
        ends
    }

    /// Two members of a tailnet.
    pub(super) fn joined([left, right]: [End; 2]) -> Self {
        Self { left, right, link: None, tailnet: None }
    }

    /// Waits until both members of a tailnet send directly.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn wait_until_direct(&self) {
        if let Some([left, right]) = self.members() {
            left.wait_until_direct(right);
            right.wait_until_direct(left);
        }
    }

    /// Waits until both members of a tailnet reach each other through a third member that relays.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn wait_until_relayed(&self) {
        if let Some([left, right]) = self.members() {
            left.wait_until_relayed(right, "");
            right.wait_until_relayed(left, "");
        }
    }

    fn members(&self) -> Option<[&Member; 2]> {
        match (&self.left.daemon, &self.right.daemon) {
            (Some(Running::Member(left)), Some(Running::Member(right))) => Some([left, right]),
            _ => None,
        }
    }

    /// Waits until a ping passes.
    pub(super) fn wait_until_connected(&self) {
        let target = self.right.inner.of(Family::V4);
        eventually("the hosts reach each other", PATIENCE, || {
            ping(&self.left.host, format!("-c 1 -W 0.5 {target}")).is_complete()
        });
    }

    /// Checks that no traffic was relayed, if there is a relay.
    ///
    /// # Panics
    /// If it was.
    pub(super) fn assert_direct(&self) {
        if let Some((direct, _)) = &self.tailnet {
            direct.assert_direct();
        }
        if let Some([left, right]) = self.members() {
            for (from, to) in [(left, right), (right, left)] {
                let path = from.path_to(to);
                assert!(matches!(path, Path::Direct(_)), "{} by {path:?}", from.host.name());
            }
        }
    }
}

impl Wired {
    /// On one cable, or with an emulated link of this shape between them.
    pub(super) fn new(shape: Option<&str>) -> Self {
        let Some(shape) = shape else {
            let (left, right) = Pair::hosts(1500);
            return Self { left, right, link: None };
        };
        let (left, right, mut link) = EmulatedLink::wire();
        link.reshape(shape);
        Self { left, right, link: Some(link) }
    }

    /// The right end's outer address for the left end, and the reverse.
    pub(super) fn outer(&self) -> [Addresses; 2] {
        match self.link {
            None => [Addresses::new(1, 2), Addresses::new(1, 1)],
            Some(_) => EmulatedLink::outer(),
        }
    }
}

/// The last byte of the link's addresses.
const LINK: u8 = 254;

impl EmulatedLink {
    /// Its own addresses on the left and on the right cable.
    pub(super) const GATEWAYS: [&str; 2] = ["10.1.0.254", "10.2.0.254"];

    /// Two hosts with a link between them that does not relay yet.
    pub(super) fn wire() -> (Host, Host, Self) {
        let (left, middle, right) = (Host::new("left"), Host::new("link"), Host::new("right"));
        for (number, end, device) in [(1, &left, "l1"), (2, &right, "l2")] {
            cable(end, "eth0", &middle, device, 1500);
            Addresses::new(number, number).assign(end, "eth0");
            Addresses::new(number, LINK).assign(&middle, device);
        }
        (left, right, Self { relay: None, host: middle, dropped: Dropped::default() })
    }

    /// The right end's address for the left end, and the reverse: the link's address on the
    /// respective cable.
    pub(super) fn outer() -> [Addresses; 2] {
        [Addresses::new(1, LINK), Addresses::new(2, LINK)]
    }

    /// Restarts the link with this shape; datagrams in flight are lost.
    pub(super) fn reshape(&mut self, shape: &str) {
        self.dropped();
        let (left, right) = (format!("10.1.0.{LINK}:{PORT}"), format!("10.2.0.{LINK}:{PORT}"));
        let daemons = [format!("10.1.0.1:{PORT}"), format!("10.2.0.2:{PORT}")];
        let arguments = ["link", shape, &left, &daemons[0], &right, &daemons[1]];
        self.relay = Some(Server::start(&self.host, &arguments, PORT));
    }

    /// Ends the relay and returns all drops since its start.
    pub(super) fn dropped(&mut self) -> Dropped {
        let words = self.relay.take().map(Server::finish).unwrap_or_default();
        let more = Dropped::parse(&words).unwrap_or_default();
        self.dropped.lost += more.lost;
        self.dropped.queue += more.queue;
        self.dropped.refused += more.refused;
        self.dropped
    }
}
