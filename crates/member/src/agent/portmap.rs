//! The port mapping at the router.
//!
//! ```text
//!   PortMapping ── the port, checks ──► task ──► PCP, NAT-PMP, upnp ──► router
//!        ▲                                │
//!        `─────────── Router ─────────────'
//! ```

pub(super) mod task;
mod upnp;

use std::{
    net::{SocketAddr, SocketAddrV4},
    time::Duration,
};

use mesh::{netcheck::NetInfo, portmap::GatewayState};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The input of the task, which checks the gateway at each notification.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// The port to map, if any.
    pub port: Option<u16>,
}

/// The state of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Router {
    /// By PCP and NAT-PMP.
    pub pcp_nat_pmp: GatewayState,
    /// By UPnP, which is tried if they map nothing.
    pub upnp: UpnpState,
}

/// The state of a router that supports UPnP, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UpnpState {
    /// Whether it supports UPnP, once that is known.
    pub is_supported: Option<bool>,
    /// The external address of this machine, and its expiry.
    pub mapping: Option<(SocketAddrV4, Duration)>,
}

impl Router {
    /// The protocol, the external address and the expiry of the mapping.
    fn mapping(&self) -> Option<(String, SocketAddrV4, Duration)> {
        let pcp_nat_pmp = self.pcp_nat_pmp.mapping;
        let pcp_nat_pmp = pcp_nat_pmp.map(|it| (it.protocol.to_string(), it.external, it.expires));
        let upnp = self.upnp.mapping;
        pcp_nat_pmp.or(upnp.map(|(external, expires)| ("UPnP".to_owned(), external, expires)))
    }
}

/// The port mapping of a node.
pub(super) struct PortMapping {
    wanted: watch::Sender<Wanted>,
    known: Router,
}

impl PortMapping {
    /// A port mapping by the task that receives `wanted`.
    pub(super) fn new(wanted: watch::Sender<Wanted>) -> Self {
        Self { wanted, known: Router::default() }
    }

    /// Sets the port to map.
    pub(super) fn set_port(&self, port: Option<u16>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(&mut wanted.port, port) != port);
    }

    /// Makes the task check the gateway and the mapping.
    pub(super) fn check(&self) {
        if self.wanted.borrow().port.is_some() {
            self.wanted.send_modify(|_| {});
        }
    }

    /// Sets the state of the router. Returns whether the external address changed.
    pub(super) fn set(&mut self, known: Router) -> bool {
        let before = self.endpoint();
        self.known = known;
        self.endpoint() != before
    }

    /// The external address.
    pub(super) fn endpoint(&self) -> Option<SocketAddr> {
        self.known.mapping().map(|(_, external, _)| external.into())
    }

    /// Adds the port mapping to the information for the coordinator.
    pub(super) fn add_to(&self, info: NetInfo) -> NetInfo {
        let GatewayState { pcp, nat_pmp, .. } = self.known.pcp_nat_pmp;
        let have_port_map = self.known.mapping().is_some();
        NetInfo { have_port_map, pcp, pmp: nat_pmp, upnp: self.known.upnp.is_supported, ..info }
    }

    /// A line for users.
    pub(super) fn text(&self, now: Duration) -> String {
        let GatewayState { pcp, nat_pmp, .. } = self.known.pcp_nat_pmp;
        match (self.known.mapping(), pcp, nat_pmp, self.known.upnp.is_supported) {
            (Some((protocol, external, expires)), ..) => {
                let left = expires.saturating_sub(now).as_secs();
                format!("{external} by {protocol}, for {left} s")
            }
            (None, Some(false), Some(false), Some(false)) => {
                "none: the router supports neither PCP, NAT-PMP nor UPnP".to_owned()
            }
            (None, Some(_), Some(_), Some(_)) => "none: the router refuses".to_owned(),
            (None, ..) => "none".to_owned(),
        }
    }

    /// JSON for programs; null without a mapping.
    pub(super) fn json(&self, now: Duration) -> Value {
        self.known.mapping().map_or(Value::Null, |(protocol, external, expires)| {
            json!({
                "Protocol": protocol,
                "Address": external.to_string(),
                "LifetimeSeconds": expires.saturating_sub(now).as_secs(),
            })
        })
    }
}
