//! A tailnet: headscale with its relay, and hosts that join it.
//!
//! ```text
//!   coordinator: headscale, TLS at 443, DERP in it, STUN
//!   eth0 10.1.0.1  fd01::1
//!         |
//!       switch ------- eth0 10.1.0.2  fd01::2    a host on the switch
//!         |
//!         '----------- wan 10.1.0.3   router  lan 192.168.0.1 ---- eth0 192.168.0.2    a host behind it
//! ```
//!
//! All hosts behind routers have the same address there. Nothing leads anywhere else.

mod certificate;
mod coordinator;
mod member;

use std::cell::Cell;

pub use self::coordinator::Coordinator;
pub use self::member::{Member, MemberKind, MemberProgram, Path};
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
    oifname wan masquerade
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

/// A headscale and a switch; hosts are added to it.
pub struct Tailnet {
    /// The coordinator.
    pub coordinator: Coordinator,
    switch: Host,
    used: Cell<u8>,
}

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// On the switch, as in the same room.
    Switch,
    /// Behind a router with a NAT that maps by endpoint and filters by address and port, as most do.
    Nat,
    /// Behind the same that passes no UDP.
    WithoutUdp,
}

impl Tailnet {
    /// Starts a coordinator, or returns nothing where a program is missing, which is announced.
    ///
    /// # Panics
    /// When headscale does not start; its log is in the message.
    pub fn start() -> Option<Tailnet> {
        if let Some(missing) = missing() {
            skips::skip(missing);
            return None;
        }
        let switch = Host::new("switch");
        switch.run("ip link add br0 type bridge && ip link set br0 up");
        let host = Host::new("coordinator");
        let addresses = Addresses::new(SWITCH, COORDINATOR);
        plug(&switch, &host, "eth0", COORDINATOR);
        addresses.assign(&host, "eth0");
        let coordinator = Coordinator::start(host, &addresses);
        Some(Tailnet { coordinator, switch, used: Cell::new(COORDINATOR) })
    }

    /// Whether all programs are there.
    pub fn can_start() -> bool {
        missing().is_none()
    }

    /// A new host that reaches the coordinator. What is written to its /etc is its own.
    pub fn host(&self, name: &str, uplink: Uplink) -> Host {
        let host = Host::new(name);
        own_etc(&host);
        let number = self.used.get() + 1;
        self.used.set(number);
        if uplink == Uplink::Switch {
            plug(&self.switch, &host, "eth0", number);
            Addresses::new(SWITCH, number).assign(&host, "eth0");
            // Programs take a machine without a default route for one without a network.
            for family in Family::ALL {
                let gateway = Addresses::new(SWITCH, COORDINATOR);
                host.run(format!("ip route add default via {}", gateway.of(family)));
            }
        } else {
            self.route(&host, number, uplink == Uplink::WithoutUdp);
        }
        host.write("ca.pem", self.coordinator.authority());
        host
    }

    /// Puts a router before a host.
    fn route(&self, host: &Host, number: u8, without_udp: bool) {
        let router = Host::new("router");
        plug(&self.switch, &router, "wan", number);
        Addresses::new(SWITCH, number).assign(&router, "wan");
        cable(host, "eth0", &router, "lan", 1500);
        for (end, device, address) in [(&router, "lan", INSIDE[0]), (host, "eth0", INSIDE[1])] {
            crate::address(end, device, &format!("{address}/24"));
        }
        host.run(format!("ip route add default via {}", INSIDE[0]));
        forward(&router);
        let without_udp = if without_udp { "meta l4proto udp drop" } else { "" };
        let rules = router.write("rules", &NAT.replace("WITHOUT_UDP", without_udp));
        router.run(format!("nft -f {rules}"));
        self.coordinator.keep(router);
    }
}

fn missing() -> Option<&'static str> {
    ["headscale", "tailscaled", "tailscale"].into_iter().find(|name| crate::peer(name).is_none())
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
