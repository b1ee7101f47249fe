//! A tailnet: a coordinator with its relay, headscale or ours, and hosts that join it.
//!
//! ```text
//!   coordinator: TLS at 443 with DERP, STUN
//!   eth0 10.1.0.1  fd01::1
//!         |
//!       switch ------- eth0 10.1.0.2  fd01::2    a host on the switch
//!         |
//!         '----------- routers ---- box  192.168.0.1 ---- eth0 192.168.0.2    a host behind a box
//! ```
//!
//! All hosts behind boxes have the same inner address. There is no route to the Internet.

mod certificate;
mod coordinator;
mod gateway;
mod lan;
mod member;
mod nat;
mod port_mapper;
mod provider;
mod switch;

pub use self::certificate::Certificate;
pub use self::coordinator::{Coordinator, CoordinatorKind};
pub use self::lan::Lan;
pub use self::member::{Member, MemberKind, MemberProgram, Path};
pub use self::nat::{Nat, accept_udp, drop_udp};
pub use self::port_mapper::{Mapping, PortMapper};
pub use self::provider::{Page, Provider};
pub use self::switch::{Switch, Uplink, own_etc};
use crate::host::Host;
use crate::pair::Addresses;

/// A coordinator and a switch; hosts are added to it.
pub struct Tailnet {
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The coordinator's certificate.
    pub certificate: Certificate,
    switch: Switch,
}

impl Tailnet {
    /// Starts the configured coordinator; `None` if a program is missing, which is announced.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn start() -> Option<Self> {
        Self::start_with(CoordinatorKind::wanted())
    }

    /// The same with this coordinator.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn start_with(kind: CoordinatorKind) -> Option<Self> {
        if let Some(missing) = missing(kind) {
            skips::skip(missing);
            return None;
        }
        Some(Self::without_members(kind))
    }

    /// The same for hosts without members: only the coordinator's program is needed.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn without_members(kind: CoordinatorKind) -> Self {
        let certificate = Certificate::new(Switch::coordinator());
        let (switch, host) = Switch::new(&certificate.authority);
        let coordinator = Coordinator::start(kind, host, &certificate);
        Self { coordinator, certificate, switch }
    }

    /// Enables port mapping on the box in front of a host.
    ///
    /// # Panics
    /// If the host is not behind a box.
    pub fn map_ports(&self, host: &Host, mapping: Mapping) -> PortMapper {
        self.switch.map_ports(host, mapping)
    }

    /// Drops all packets between hosts behind different boxes.
    pub fn block_between_boxes(&self) {
        self.switch.block_between_boxes();
    }

    /// Adds a second uplink to a host, by the switch. Returns the device, and the router for remote
    /// networks.
    pub fn add_second_uplink(&self, host: &Host) -> (&'static str, Addresses) {
        self.switch.add_second_uplink(host)
    }

    /// Deletes all flows of the box in front of a host, as after a restart of the box.
    ///
    /// # Panics
    /// If the host is not behind a box.
    pub fn clear_flows(&self, host: &Host) {
        self.switch.clear_flows(host);
    }

    /// Whether all programs are installed.
    pub fn can_start() -> bool {
        missing(CoordinatorKind::wanted()).is_none()
    }

    /// A new host that reaches the coordinator. Its /etc is private.
    pub fn host(&self, name: &str, uplink: Uplink) -> Host {
        self.switch.host(name, uplink)
    }
}

fn missing(kind: CoordinatorKind) -> Option<&'static str> {
    if kind.program().is_none() {
        return Some(match kind {
            CoordinatorKind::Headscale => "headscale",
            CoordinatorKind::Linerate => "linerate-server",
        });
    }
    ["tailscaled", "tailscale"].into_iter().find(|name| crate::peer(name).is_none())
}
