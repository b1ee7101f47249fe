//! Parts of a network that its API and page use. Handlers extract the parts they need.

use std::sync::Arc;

use axum::extract::FromRef;
use tokio::sync::Semaphore;

use super::sessions::Sessions;
use crate::{
    clients::pings::Pings,
    net::address::ServerUrl,
    network::{NetworkState, health::Health},
};

/// Maximum number of event streams of the page.
const STREAMS: usize = 64;

/// State of the routers for administrators.
#[derive(Clone)]
pub struct AdminState {
    network: Arc<NetworkState>,
    site: Arc<AdminSite>,
    sessions: Arc<Sessions>,
    pings: Arc<Pings>,
    health: Arc<Health>,
}

/// The administrators' page: its address, and its event streams.
pub struct AdminSite {
    /// Origin of the page. Browsers store its cookie only with TLS.
    origin: ServerUrl,
    /// Fingerprint of a self-signed certificate at this origin.
    fingerprint: Option<String>,
    /// The command with which a node joins, without an auth key.
    join_command: String,
    /// Permits for event streams.
    streams: Arc<Semaphore>,
}

impl AdminState {
    /// Collects the parts.
    pub fn new(
        network: Arc<NetworkState>,
        site: Arc<AdminSite>,
        sessions: Arc<Sessions>,
        pings: Arc<Pings>,
        health: Arc<Health>,
    ) -> Self {
        Self { network, site, sessions, pings, health }
    }
}

impl AdminSite {
    /// Creates the site at this origin. `fingerprint` is that of a self-signed certificate.
    pub fn new(origin: ServerUrl, fingerprint: Option<String>, join_command: String) -> Self {
        Self { origin, fingerprint, join_command, streams: Arc::new(Semaphore::new(STREAMS)) }
    }

    /// Origin of the page.
    pub fn origin(&self) -> &ServerUrl {
        &self.origin
    }

    /// Fingerprint of a self-signed certificate at the origin.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// The command with which a node joins, without an auth key.
    pub fn join_command(&self) -> &str {
        &self.join_command
    }

    /// The link that opens the page with this token. Browsers do not send the part after the
    /// number sign, so it appears in no log.
    pub fn link(&self, token: &str) -> String {
        format!("{}/admin/login#{token}", self.origin)
    }

    /// Permits for event streams.
    pub fn streams(&self) -> &Arc<Semaphore> {
        &self.streams
    }
}

impl FromRef<AdminState> for Arc<NetworkState> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.network)
    }
}

impl FromRef<AdminState> for Arc<AdminSite> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.site)
    }
}

impl FromRef<AdminState> for Arc<Sessions> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.sessions)
    }
}

impl FromRef<AdminState> for Arc<Pings> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.pings)
    }
}

impl FromRef<AdminState> for Arc<Health> {
    fn from_ref(state: &AdminState) -> Self {
        Self::clone(&state.health)
    }
}
