//! A tailnet: a coordinator with its relay, headscale or ours, and hosts that join it.
//!
//! ```text
//!   coordinator: TLS at 443, DERP in it, STUN
//!   eth0 10.1.0.1  fd01::1
//!         |
//!       switch ------- eth0 10.1.0.2  fd01::2    a host on the switch
//!         |
//!         '----------- routers ---- box  192.168.0.1 ---- eth0 192.168.0.2    a host behind a box
//! ```
//!
//! All hosts behind boxes have the same address there. Nothing leads anywhere else.

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
pub use self::nat::{Nat, deafen, hears};
pub use self::port_mapper::{Mapping, PortMapper};
pub use self::provider::{Page, Provider};
pub use self::switch::{Switch, Uplink};
use crate::host::Host;
use crate::pair::Addresses;

/// A coordinator and a switch; hosts are added to it.
pub struct Tailnet {
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The coordinator's.
    pub certificate: Certificate,
    switch: Switch,
}

impl Tailnet {
    /// Starts the coordinator that is wanted, or returns nothing where a program is missing, which is
    /// announced.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn start() -> Option<Tailnet> {
        Tailnet::start_with(CoordinatorKind::wanted())
    }

    /// The same with this one.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn start_with(kind: CoordinatorKind) -> Option<Tailnet> {
        if let Some(missing) = missing(kind) {
            skips::skip(missing);
            return None;
        }
        Some(Tailnet::without_members(kind))
    }

    /// The same for hosts that run no member: the coordinator's program must be there, and no other.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn without_members(kind: CoordinatorKind) -> Tailnet {
        let certificate = Certificate::new(Switch::coordinator());
        let (switch, host) = Switch::new(&certificate.authority);
        let coordinator = Coordinator::start(kind, host, &certificate);
        Tailnet { coordinator, certificate, switch }
    }

    /// Has the box before a host map ports.
    ///
    /// # Panics
    /// When there is no box.
    pub fn map_ports(&self, host: &Host, mapping: Mapping) -> PortMapper {
        self.switch.map_ports(host, mapping)
    }

    /// Has nothing pass from what is behind one box to what is behind another.
    pub fn part_boxes(&self) {
        self.switch.part_boxes();
    }

    /// Gives a host a second way out, by the switch. Returns the device, and the router for all
    /// that is far.
    pub fn second_way(&self, host: &Host) -> (&'static str, Addresses) {
        self.switch.second_way(host)
    }

    /// Has the box before a host forget all flows, as one that is started again.
    ///
    /// # Panics
    /// When there is no box.
    pub fn forget(&self, host: &Host) {
        self.switch.forget(host);
    }

    /// Whether all programs are there.
    pub fn can_start() -> bool {
        missing(CoordinatorKind::wanted()).is_none()
    }

    /// A new host that reaches the coordinator. What is written to its /etc is its own.
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
