//! Runs the server: starts its networks, and opens its listeners.

mod onboarding;
mod start;

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use axum::Router;
use tailnet::keys::MachineKey;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};

pub use self::onboarding::certificate_hint;
use self::start::TenantStart;
use crate::{
    admin::{api, page, sessions::Sessions},
    clients::{
        data_paths::DataPaths,
        machine::waiting_requests::WaitingRequests,
        map_stream::{MapPermits, PackedFrames},
        pings::Pings,
    },
    configuration::Configuration,
    derp::Relay,
    http::{listen, metrics},
    net::{address::ServerUrl, stun},
    network::{NetworkState, health::Health},
    oidc::Oidc,
    process::{ProcessContext, files},
    tenants::Tenants,
    tls::{Acceptors, Tls, own_certificate::OwnCertificate},
};

/// How long the listeners wait for networks that are slow to start, if there are several.
const PATIENCE: Duration = Duration::from_secs(5);

/// A network with everything that serves it. Tenants do not share state.
pub struct Tenant {
    /// URL under which clients reach it.
    pub(crate) url: ServerUrl,
    /// Origin of the administrators' page. Browsers store its cookie only with TLS.
    pub(crate) admin_origin: ServerUrl,
    /// Fingerprint of a self-signed certificate at this origin.
    pub(crate) admin_fingerprint: Option<String>,
    /// The Noise key.
    pub(crate) noise: MachineKey,
    /// Name of the network in streams. It is the same at all servers of a shared database.
    pub(crate) name: String,
    /// The network's state.
    pub(crate) network: Arc<NetworkState>,
    /// The relay, if it is enabled.
    pub(crate) relay: Option<Arc<Relay>>,
    /// The login provider, if one is configured.
    pub(crate) oidc: Option<Oidc>,
    /// Packed frames that several clients receive.
    pub(crate) packed: PackedFrames,
    /// Requests to clients.
    pub(crate) pings: Pings,
    /// Routers that carry data.
    pub(crate) data_paths: DataPaths,
    /// Registration requests that wait for a decision.
    pub(crate) waiting_requests: WaitingRequests,
    /// Permits to send a whole map.
    pub(crate) turns: MapPermits,
    /// Sessions of the page.
    pub(crate) sessions: Arc<Sessions>,
    /// Permits for event streams of the page.
    pub(crate) streams: Arc<Semaphore>,
    /// Health of the network.
    pub(crate) health: Health,
    /// Routers of the API and the page. They refer back to the tenant, and both live as long as
    /// the process.
    pub(crate) fronts: OnceLock<Fronts>,
}

/// Routers for administrators.
pub struct Fronts {
    /// The API.
    pub(crate) api: Router,
    /// The page.
    pub(crate) page: Router,
}

impl Tenant {
    /// The command with which a node joins, without an auth key.
    pub(crate) fn join_command(&self) -> String {
        format!("linerate join {} --server-key {}", self.url, self.noise.public())
    }

    /// The link that opens the page with this token. Browsers do not send the part after the
    /// number sign, so it appears in no log.
    pub(crate) fn admin_link(&self, token: &str) -> String {
        format!("{}/admin/login#{token}", self.admin_origin)
    }

    /// Routers for administrators.
    pub(crate) fn fronts(self: &Arc<Self>) -> &Fronts {
        self.fronts.get_or_init(|| Fronts {
            api: api::router(Arc::clone(self)),
            page: page::router(Arc::clone(self)),
        })
    }
}

/// Runs until the process ends.
///
/// # Errors
/// The server cannot start.
pub async fn serve(configuration: Configuration) -> anyhow::Result<()> {
    serve_in(configuration, ProcessContext::default()).await
}

/// The same, with the context of the process.
///
/// # Errors
/// The server cannot start.
pub async fn serve_in(configuration: Configuration, context: ProcessContext) -> anyhow::Result<()> {
    let data_plane = context.data_plane();
    let is_unconfigured = configuration.server_url.is_none();
    let configuration = configuration.complete();
    let url = configuration.check()?.clone();
    for own in configuration.each() {
        let url = own.server_url.as_ref().unwrap_or(&url);
        own.warnings(url).iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    files::make_folder(&configuration.state_dir)?;
    let certificate = match configuration.derp.enabled && !configuration.derp.listen.is_empty() {
        true => Some(Arc::new(OwnCertificate::of(&configuration.state_dir, url.host())?)),
        false => None,
    };
    let tls = Tls::of(&configuration, certificate.as_deref())?;
    let each = configuration.each();
    let acme = tls.acme.as_ref().map(|acme| Arc::clone(&acme.resolver));
    let tenants = Arc::new(Tenants::new(&each, acme));
    let starts = tenants.all().iter().zip(each).map(|(slot, configuration)| TenantStart {
        slot: Arc::clone(slot),
        configuration,
        certificate: certificate.clone(),
        is_unconfigured,
        data_plane: data_plane.clone(),
    });
    let starts: Vec<TenantStart> = starts.collect();
    // The sandbox does not allow creating folders and sockets later.
    let mut commands = Vec::new();
    for TenantStart { slot, configuration, .. } in &starts {
        files::make_folder(&configuration.state_dir)?;
        commands.push((Arc::clone(slot), api::bind(&configuration.socket)?));
    }
    let (listens, is_listening) = watch::channel(false);
    let ended = start(starts, is_listening).await?;
    listen_everywhere(&tenants, &configuration, &tls.acceptors, &data_plane).await?;
    for (slot, listener) in commands {
        tokio::spawn(api::serve(slot, listener));
    }
    let of_strangers = Arc::clone(&tenants);
    tokio::spawn(async move { of_strangers.connections.release_memory().await });
    context.started(&tenants, tls.follow())?;
    listens.send_replace(true);
    match ended.await? {}
}

/// Starts all networks. If a single network cannot start, this is an error. Several networks are
/// retried. The returned future waits until one of them ends.
async fn start(
    mut starts: Vec<TenantStart>,
    is_listening: watch::Receiver<bool>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<Infallible>>> {
    let mut tasks = JoinSet::new();
    if let [only] = &*starts {
        let writer = only.start().await?;
        tasks.spawn(only.clone().run(writer, is_listening.clone()));
        starts.clear();
    }
    let mut tried = Vec::new();
    for start in starts {
        let (sender, is_tried) = watch::channel(false);
        tasks.spawn(start.start_and_run(sender, is_listening.clone()));
        tried.push(is_tried);
    }
    let all = async {
        for mut is_tried in tried {
            // Without a sender, the network has ended.
            let _ = is_tried.wait_for(|is| *is).await;
        }
    };
    let _ = timeout(PATIENCE, all).await;
    Ok(async move {
        let ended = tasks.join_next().await.context("no network is configured")?;
        ended.context("a network")?
    })
}

async fn listen_everywhere(
    tenants: &Arc<Tenants>,
    configuration: &Configuration,
    tls: &Acceptors,
    data_plane: &Handle,
) -> anyhow::Result<()> {
    let serve = |listener, tls| {
        let serving = listen::serve(Arc::clone(tenants), listener, tls, Handle::current());
        data_plane.spawn(serving);
    };
    for address in &configuration.listen {
        let listener = listen::bind(*address).await?;
        serve(listener, tls.all.clone());
    }
    for address in &configuration.listen_plain {
        let listener = listen::bind(*address).await?;
        serve(listener, None);
    }
    for address in &configuration.listen_if_possible {
        match listen::bind(*address).await {
            Ok(listener) => serve(listener, tls.relay.clone()),
            Err(error) => onboarding::warn_of_clients_without_tls(
                configuration.server_url.as_ref(),
                &format!("{error:#}"),
            ),
        }
    }
    for url in configuration.urls_without_tls() {
        onboarding::warn_of_clients_without_tls(
            Some(&url),
            "the server does not listen at this port",
        );
    }
    for address in &configuration.metrics_listen {
        let listener = listen::bind(*address).await?;
        tokio::spawn(metrics::serve(Arc::clone(tenants), listener));
    }
    if configuration.derp.enabled {
        for address in &configuration.derp.listen {
            let listener = listen::bind(*address).await?;
            serve(listener, tls.relay.clone());
        }
    }
    if configuration.each().iter().any(|own| own.derp.enabled) {
        for address in &configuration.derp.stun_listen {
            let socket = data_plane.spawn(stun::bind(*address)).await.context("threads")?;
            let socket = socket.with_context(|| format!("listening for STUN at {address}"))?;
            data_plane.spawn(stun::answer(socket));
        }
    }
    Ok(())
}
