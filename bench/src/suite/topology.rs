//! Two hosts, on one cable or with an emulated link between them, and what carries their packets.

use netns::{
    Addresses, Daemon, Family, Host, INTERFACE, Key, PORT, Pair, cable, configure, eventually, ping,
};

use super::{PATIENCE, Server};
use crate::contender::{Carrier, Contender};
use crate::link::Dropped;

/// One end of what carries.
pub(super) struct End {
    pub host: Host,
    /// How the other end calls it outside of the tunnel.
    pub outer: Addresses,
    /// Inside of it; of a bare cable the same.
    pub inner: Addresses,
    /// Of WireGuard.
    pub key: Option<Key>,
    /// Where one serves the tunnel.
    pub daemon: Option<Daemon>,
}

/// Both ends, and what is between them.
pub(super) struct Ends {
    pub left: End,
    pub right: End,
    pub link: Option<EmulatedLink>,
}

/// The link of `crate::link`, on a host of its own.
pub(super) struct EmulatedLink {
    relay: Option<Server>,
    pub(super) host: Host,
    /// By the relays that it had before.
    dropped: Dropped,
}

impl End {
    /// Has the contender serve a wired host.
    fn start(host: Host, contender: &Contender, number: u8, outer: Addresses) -> End {
        let daemon = match &contender.carrier {
            Carrier::Bare => {
                let inner = outer.clone();
                return End { host, outer, inner, key: None, daemon: None };
            }
            Carrier::Kernel => {
                host.run(format!("ip link add {INTERFACE} type wireguard"));
                None
            }
            Carrier::Daemon(program) => Some(Daemon::start(&host, program.clone(), INTERFACE)),
            Carrier::Tailscaled(_) => unreachable!("Test::lacks keeps it to the proxies"),
        };
        let (key, inner) = configure(&host, number);
        End { host, outer, inner, key: Some(key), daemon }
    }

    /// Makes the other end a peer, the last of all, with these networks beside its own addresses.
    pub fn add_peer(&self, other: &End, networks: &str) {
        let Some(key) = &other.key else { return };
        let (peer, ips) = (&key.public, other.inner.allowed_ips());
        let endpoint = other.outer.endpoint(Family::V4, PORT);
        self.host.run(format!(
            "wg set {INTERFACE} peer {peer} allowed-ips {ips}{networks} endpoint {endpoint}"
        ));
    }

    /// The device that packets to the other end leave by, and the other end as their gateway.
    pub fn route_to(&self, other: &End, network: &str) {
        let way = match self.key {
            Some(_) => format!("dev {INTERFACE}"),
            None => format!("via {}", other.outer.of(Family::V4)),
        };
        self.host.run(format!("ip route add {network} {way}"));
    }
}

impl Ends {
    /// Starts the contender in both hosts, which meet; `link` in the words of `Shape::parse`.
    ///
    /// # Panics
    /// When no packet passes.
    pub fn start(contender: &Contender, link: Option<&str>) -> Ends {
        let ends = match link {
            Some(shape) => Ends::linked(contender, shape),
            None => {
                let (left, right) = Pair::hosts(1500);
                Ends {
                    left: End::start(left, contender, 1, Addresses::new(1, 1)),
                    right: End::start(right, contender, 2, Addresses::new(1, 2)),
                    link: None,
                }
            }
        };
        ends.left.add_peer(&ends.right, "");
        ends.right.add_peer(&ends.left, "");
        ends.meet();
        ends
    }

    /// Waits until a ping passes.
    pub fn meet(&self) {
        let target = self.right.inner.of(Family::V4);
        eventually("the hosts reach each other", PATIENCE, || {
            ping(&self.left.host, format!("-c 1 -W 0.5 {target}")).is_complete()
        });
    }

    fn linked(contender: &Contender, shape: &str) -> Ends {
        let (left, right, mut link) = EmulatedLink::wire();
        let [of_right, of_left] = EmulatedLink::outer();
        let ends = Ends {
            left: End::start(left, contender, 1, of_left),
            right: End::start(right, contender, 2, of_right),
            link: None,
        };
        link.reshape(shape);
        Ends { link: Some(link), ..ends }
    }
}

/// The last byte of the link's addresses.
const LINK: u8 = 254;

impl EmulatedLink {
    /// Its own addresses on the left and on the right cable.
    pub(super) const GATEWAYS: [&str; 2] = ["10.1.0.254", "10.2.0.254"];

    /// Two hosts with a link between them that moves nothing yet.
    pub(super) fn wire() -> (Host, Host, EmulatedLink) {
        let (left, middle, right) = (Host::new("left"), Host::new("link"), Host::new("right"));
        for (number, end, device) in [(1, &left, "l1"), (2, &right, "l2")] {
            cable(end, "eth0", &middle, device, 1500);
            Addresses::new(number, number).assign(end, "eth0");
            Addresses::new(number, LINK).assign(&middle, device);
        }
        (left, right, EmulatedLink { relay: None, host: middle, dropped: Dropped::default() })
    }

    /// How the left end calls the right one, and the other way: each by the link's address on its
    /// own cable.
    pub(super) fn outer() -> [Addresses; 2] {
        [Addresses::new(1, LINK), Addresses::new(2, LINK)]
    }

    /// From now on it is of this shape; what is on the way is lost.
    pub(super) fn reshape(&mut self, shape: &str) {
        self.dropped();
        let (left, right) = (format!("10.1.0.{LINK}:{PORT}"), format!("10.2.0.{LINK}:{PORT}"));
        let daemons = [format!("10.1.0.1:{PORT}"), format!("10.2.0.2:{PORT}")];
        let arguments = ["link", shape, &left, &daemons[0], &right, &daemons[1]];
        self.relay = Some(Server::start(&self.host, &arguments, PORT));
    }

    /// Ends it and tells what did not come out of it since its start.
    pub(super) fn dropped(&mut self) -> Dropped {
        let words = self.relay.take().map(Server::finish).unwrap_or_default();
        let more = Dropped::parse(&words).unwrap_or_default();
        self.dropped.lost += more.lost;
        self.dropped.queue += more.queue;
        self.dropped.refused += more.refused;
        self.dropped
    }
}
