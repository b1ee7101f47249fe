//! A switch with the coordinator's host and other hosts.
//!
//! Routers connect the boxes, as on the Internet: a packet with a small TTL passes the sender's box
//! and expires before any other box.
//!
//! ```text
//!   host ── box ── access router ──┐                       ┌── access router ── box ── host
//!     192.168.0.0/24  10.2.N.0/30  └─ switch ── backbone ──┘   (by the switch again)
//! ```

use std::cell::{Cell, RefCell};

use super::gateway;
use super::nat::Nat;
use super::port_mapper::{Mapping, PortMapper};
use crate::cable::{address, cable, forward};
use crate::host::Host;
use crate::pair::{Addresses, Family};
use crate::service::Service;

/// Network number of the switch, and host number of the coordinator.
const SWITCH: u8 = 1;
const COORDINATOR: u8 = 1;
/// Host number of the router between all networks that are not on the switch.
const BACKBONE: u8 = 254;
/// Networks between boxes and the routers in front of them.
const LINKS: [&str; 2] = ["10.2.0.0/16", "fd02::/16"];

/// A switch; hosts are added to it.
pub struct Switch {
    host: Host,
    used: Cell<u8>,
    /// The authority that hosts trust, in PEM.
    authority: String,
    backbone: Host,
    /// Hosts that live as long as the network.
    routers: RefCell<Vec<Host>>,
    behind: RefCell<Vec<Behind>>,
}

/// The devices in front of a host.
struct Behind {
    host: String,
    number: u8,
    outer: Host,
    access: Host,
    _service: Option<Service>,
}

/// How a host is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// On the switch, as in the same room.
    Switch,
    /// Behind a box.
    Behind(Nat),
}

impl Switch {
    /// A switch and the coordinator's host. Hosts have this authority in /run/rig/ca.pem.
    pub fn new(authority: &str) -> (Self, Host) {
        let switch = Host::new("switch");
        switch.run("ip link add br0 type bridge && ip link set br0 up");
        let [host, backbone] = [("coordinator", COORDINATOR), ("backbone", BACKBONE)].map(|at| {
            let host = Host::new(at.0);
            plug(&switch, &host, "eth0", at.1);
            Addresses::new(SWITCH, at.1).assign(&host, "eth0");
            host
        });
        forward(&backbone);
        route_links(&host);
        let switch = Self {
            host: switch,
            used: Cell::new(COORDINATOR),
            authority: authority.to_owned(),
            backbone,
            routers: RefCell::default(),
            behind: RefCell::default(),
        };
        (switch, host)
    }

    /// The coordinator's addresses.
    pub fn coordinator() -> Addresses {
        Addresses::new(SWITCH, COORDINATOR)
    }

    /// A new host that reaches the coordinator. Its /etc is private.
    pub fn host(&self, name: &str, uplink: Uplink) -> Host {
        let host = Host::new(name);
        own_etc(&host);
        let number = self.used.get() + 1;
        self.used.set(number);
        match uplink {
            Uplink::Switch => {
                plug(&self.host, &host, "eth0", number);
                Addresses::new(SWITCH, number).assign(&host, "eth0");
                // Programs assume that a machine without a default route has no network.
                default_route(&host, &Self::coordinator());
                route_links(&host);
            }
            Uplink::Behind(nat) => self.put_behind(nat, &host, number),
        }
        host.write("ca.pem", &self.authority);
        host
    }

    /// Enables port mapping on the box in front of a host. The box gets a public address for it, because
    /// miniupnpd refuses others.
    ///
    /// # Panics
    /// If the host is not behind a box.
    pub fn map_ports(&self, host: &Host, mapping: Mapping) -> PortMapper {
        let behind = self.behind.borrow();
        let is_its = |one: &&Behind| one.host == host.name();
        let Behind { number, outer, access, .. } =
            behind.iter().find(is_its).expect("a box is before it");
        let external = format!("44.0.{number}.1");
        outer.run(format!("ip address add {external}/32 dev wan"));
        access.run(format!("ip route add {external} via 10.2.{number}.2"));
        let here = Addresses::new(SWITCH, *number);
        self.backbone.run(format!("ip route add {external} via {}", here.of(Family::V4)));
        PortMapper::start(outer.clone(), external, mapping)
    }

    /// Drops all packets between hosts behind different boxes.
    pub fn block_between_boxes(&self) {
        let [v4, v6] = LINKS;
        self.backbone.run(format!(
            "nft add table inet parted && nft 'add chain inet parted through \
               {{ type filter hook forward priority filter; \
                 ip saddr {v4} ip daddr {v4} drop; ip6 saddr {v6} ip6 daddr {v6} drop; }}'"
        ));
    }

    /// Adds a second uplink to a host, by the switch. Returns the device, and the router for remote
    /// networks.
    pub fn add_second_uplink(&self, host: &Host) -> (&'static str, Addresses) {
        let number = self.used.get() + 1;
        self.used.set(number);
        plug(&self.host, host, "eth1", number);
        Addresses::new(SWITCH, number).assign(host, "eth1");
        ("eth1", Addresses::new(SWITCH, BACKBONE))
    }

    /// Deletes all flows of the box in front of a host, as after a restart of the box.
    ///
    /// # Panics
    /// If the host is not behind a box.
    pub fn clear_flows(&self, host: &Host) {
        let behind = self.behind.borrow();
        let one = behind.iter().find(|one| one.host == host.name()).expect("a box is before it");
        one.outer.run("conntrack --flush 2>&1");
    }

    /// Adds boxes and a router in front of a host.
    fn put_behind(&self, nat: Nat, host: &Host, number: u8) {
        let mut boxes = vec![put_before(host, "eth0", nat, 0)];
        if nat == Nat::Double {
            boxes.push(put_before(&boxes[0], "wan", nat, 1));
        }
        let (outer, access) = (&boxes[boxes.len() - 1], Host::new("access"));
        plug(&self.host, &access, "outer", number);
        let here = Addresses::new(SWITCH, number);
        here.assign(&access, "outer");
        default_route(&access, &Addresses::new(SWITCH, BACKBONE));
        forward(&access);
        cable(outer, "wan", &access, "inner", 1500);
        let link = |end: u8| {
            Addresses::from_texts(&format!("10.2.{number}.{end}"), &format!("fd02:{number}::{end}"))
        };
        link(1).assign(&access, "inner");
        link(2).assign(outer, "wan");
        default_route(outer, &link(1));
        let inside = format!("fd02:{number}:1::/64");
        let mut leads = vec![(format!("10.2.{number}.0/24"), here.of(Family::V4).to_owned())];
        if nat.has_ipv6() {
            let net = |end: u8| Addresses::from_texts("", &format!("fd02:{number}:1::{end}"));
            for (end, device, at) in [(outer, "lan", 1), (host, "eth0", 2)] {
                address(end, device, &format!("{}/64", net(at).of(Family::V6)));
            }
            host.run(format!("ip -6 route add default via {}", net(1).of(Family::V6)));
            access.run(format!("ip -6 route add {inside} via {}", link(2).of(Family::V6)));
            leads.push((format!("fd02:{number}::/32"), here.of(Family::V6).to_owned()));
        }
        let service = gateway::serve(nat, outer, &format!("fd02:{number}:1::1"), host);
        for (net, via) in leads {
            self.backbone.run(format!("ip route add {net} via {via}"));
        }
        self.behind.borrow_mut().push(Behind {
            host: host.name().to_owned(),
            number,
            outer: outer.clone(),
            access: access.clone(),
            _service: service,
        });
        boxes.push(access);
        self.routers.borrow_mut().extend(boxes);
    }
}

/// A box in front of a host's device; `number` is that of the inner network.
fn put_before(host: &Host, device: &str, nat: Nat, number: u8) -> Host {
    let router = Host::new("router");
    cable(host, device, &router, "lan", 1500);
    let inside = [1, 2].map(|end| format!("192.168.{number}.{end}"));
    address(&router, "lan", &format!("{}/24", inside[0]));
    if nat.has_ipv4() {
        address(host, device, &format!("{}/24", inside[1]));
        host.run(format!("ip route add default via {}", inside[0]));
    }
    forward(&router);
    nat.set(&router, &inside[1]);
    router
}

fn default_route(host: &Host, gateway: &Addresses) {
    for family in Family::ALL {
        host.run(format!("ip route add default via {}", gateway.of(family)));
    }
}

/// Adds routes to the networks behind boxes.
fn route_links(host: &Host) {
    let backbone = Addresses::new(SWITCH, BACKBONE);
    for (net, family) in LINKS.into_iter().zip(Family::ALL) {
        host.run(format!("ip route add {net} via {}", backbone.of(family)));
    }
}

/// Connects a host to the switch.
fn plug(switch: &Host, host: &Host, device: &str, number: u8) {
    let socket = format!("port{number}");
    cable(host, device, switch, &socket, 1500);
    switch.run(format!("ip link set {socket} master br0"));
}

/// Gives a host its own copy of /etc. tailscaled writes a backup next to resolv.conf.
pub fn own_etc(host: &Host) {
    host.run(
        "mkdir /run/rig/etc /run/rig/etc-work && \
         mount -t overlay overlay \
           -o lowerdir=/etc,upperdir=/run/rig/etc,workdir=/run/rig/etc-work /etc && \
         rm -f /etc/resolv.conf && : >/etc/resolv.conf",
    );
}
