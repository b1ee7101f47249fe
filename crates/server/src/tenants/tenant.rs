//! A network with everything that serves it.

use std::sync::Arc;

use axum::Router;
use tailnet::keys::MachinePublic;

use crate::{
    admin::{sessions::Sessions, state::AdminSite},
    clients::machine::ControlPlane,
    derp::Relay,
    net::address::ServerUrl,
    network::{NetworkState, health::Health},
    oidc::Oidc,
};

/// A network with everything that serves it. Tenants do not share state.
pub struct Tenant {
    /// URL under which clients reach it.
    pub url: ServerUrl,
    /// The public Noise key.
    pub noise: MachinePublic,
    /// The network's state.
    pub network: Arc<NetworkState>,
    /// Requests of machines.
    pub control: Arc<ControlPlane>,
    /// The relay, if it is enabled.
    pub relay: Option<Arc<Relay>>,
    /// The login provider, if one is configured.
    pub oidc: Option<Oidc>,
    /// Health of the network.
    pub health: Arc<Health>,
    /// Sessions of the page.
    pub sessions: Arc<Sessions>,
    /// Address of the page.
    pub site: Arc<AdminSite>,
    /// Routers for administrators.
    pub fronts: Fronts,
}

/// Routers for administrators.
pub struct Fronts {
    /// The API.
    pub api: Router,
    /// The page.
    pub page: Router,
}
