//! A switch with a coordinator's host at it, and the hosts that reach that.

use std::cell::{Cell, RefCell};

use crate::cable::{cable, forward};
use crate::host::Host;
use crate::pair::{Addresses, Family};

/// The number of the network of the switch, and of the coordinator in it.
const SWITCH: u8 = 1;
const COORDINATOR: u8 = 1;

/// A router's address on the inside, and that of the host behind it.
const INSIDE: [&str; 2] = ["192.168.0.1", "192.168.0.2"];

/// The rules of a router.
const NAT: &str = "
table ip nat {
  chain out {
    type nat hook postrouting priority srcnat
    oifname wan masquerade MASQUERADE
  }
}
table inet filter {
  chain in {
    type filter hook input priority filter
    iifname wan ct state new drop
  }
  chain through {
    type filter hook forward priority filter
    iifname wan ct state new drop
    WITHOUT_UDP
  }
}
";

/// A switch; hosts are added to it.
pub struct Switch {
    host: Host,
    used: Cell<u8>,
    /// Whom hosts trust, in PEM.
    authority: String,
    /// What lives as long as the network.
    routers: RefCell<Vec<Host>>,
}

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// On the switch, as in the same room.
    Switch,
    /// Behind a router with a NAT that maps by endpoint and filters by address and port, as most do.
    Nat,
    /// Behind one that maps each flow to a port at random: two of them are never direct.
    HardNat,
    /// Behind a [`Uplink::Nat`] that passes no UDP.
    WithoutUdp,
}

impl Switch {
    /// A switch and the coordinator's host. Hosts find this authority in /run/rig/ca.pem.
    pub fn new(authority: &str) -> (Switch, Host) {
        let switch = Host::new("switch");
        switch.run("ip link add br0 type bridge && ip link set br0 up");
        let host = Host::new("coordinator");
        plug(&switch, &host, "eth0", COORDINATOR);
        Switch::coordinator().assign(&host, "eth0");
        let (used, routers) = (Cell::new(COORDINATOR), RefCell::default());
        (Switch { host: switch, used, authority: authority.to_owned(), routers }, host)
    }

    /// Where the coordinator is.
    pub fn coordinator() -> Addresses {
        Addresses::new(SWITCH, COORDINATOR)
    }

    /// A new host that reaches the coordinator. What is written to its /etc is its own.
    pub fn host(&self, name: &str, uplink: Uplink) -> Host {
        let host = Host::new(name);
        own_etc(&host);
        let number = self.used.get() + 1;
        self.used.set(number);
        if uplink == Uplink::Switch {
            plug(&self.host, &host, "eth0", number);
            Addresses::new(SWITCH, number).assign(&host, "eth0");
            // Programs take a machine without a default route for one without a network.
            for family in Family::ALL {
                let gateway = Addresses::new(SWITCH, COORDINATOR);
                host.run(format!("ip route add default via {}", gateway.of(family)));
            }
        } else {
            self.route(&host, number, uplink);
        }
        host.write("ca.pem", &self.authority);
        host
    }

    /// Puts a router before a host.
    fn route(&self, host: &Host, number: u8, uplink: Uplink) {
        let router = Host::new("router");
        plug(&self.host, &router, "wan", number);
        Addresses::new(SWITCH, number).assign(&router, "wan");
        cable(host, "eth0", &router, "lan", 1500);
        for (end, device, address) in [(&router, "lan", INSIDE[0]), (host, "eth0", INSIDE[1])] {
            crate::address(end, device, &format!("{address}/24"));
        }
        host.run(format!("ip route add default via {}", INSIDE[0]));
        forward(&router);
        let (masquerade, without_udp) = match uplink {
            Uplink::Switch | Uplink::Nat => ("", ""),
            Uplink::HardNat => ("fully-random", ""),
            Uplink::WithoutUdp => ("", "meta l4proto udp drop"),
        };
        let rules = NAT.replace("MASQUERADE", masquerade).replace("WITHOUT_UDP", without_udp);
        let rules = router.write("rules", &rules);
        router.run(format!("nft -f {rules}"));
        self.routers.borrow_mut().push(router);
    }
}

/// Plugs a host into the switch.
fn plug(switch: &Host, host: &Host, device: &str, number: u8) {
    let socket = format!("port{number}");
    cable(host, device, switch, &socket, 1500);
    switch.run(format!("ip link set {socket} master br0"));
}

/// tailscaled leaves a backup of resolv.conf beside it.
fn own_etc(host: &Host) {
    host.run(
        "mkdir /run/rig/etc /run/rig/etc-work && \
         mount -t overlay overlay \
           -o lowerdir=/etc,upperdir=/run/rig/etc,workdir=/run/rig/etc-work /etc && \
         rm -f /etc/resolv.conf && : >/etc/resolv.conf",
    );
}
