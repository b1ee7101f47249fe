//! Starts a network: its keys, its store, its relay, and its background tasks. If there are several
//! networks, one that cannot start is retried and does not delay the others.

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use sha2::{Digest, Sha256};
use tailnet::derp::RelayKey;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle, time::sleep};

use super::onboarding;
use crate::{
    admin::{
        api, page,
        sessions::Sessions,
        state::{AdminSite, AdminState},
    },
    clients::{
        data_paths::{self, DataPaths},
        machine::ControlPlane,
        pings::Pings,
        router_health,
    },
    configuration::Configuration,
    derp::{Admission, Relay, maps::Maps, mesh::Mesh},
    net::address::ServerUrl,
    network::{NetworkState, health::Health},
    oidc::Oidc,
    process::files,
    random::random_number,
    store::Store,
    tenants::{
        TenantSlot,
        tenant::{Fronts, Tenant},
    },
    tls::own_certificate::OwnCertificate,
};

/// Pause before a network that could not start is retried.
const AGAIN: Duration = Duration::from_secs(5);

/// Everything that is needed to start a network.
#[derive(Clone)]
pub(super) struct TenantStart {
    /// Slot of the tenant.
    pub slot: Arc<TenantSlot>,
    /// Its configuration.
    pub configuration: Configuration,
    /// Self-signed certificate of its relay.
    pub certificate: Option<Arc<OwnCertificate>>,
    /// Whether the server is not configured, so that its URL was chosen.
    pub is_unconfigured: bool,
    /// Runtime of its relay.
    pub data_plane: Handle,
}

impl TenantStart {
    /// Starts the network. The returned task is its writer.
    ///
    /// # Errors
    /// It cannot start.
    pub(super) async fn start(&self) -> anyhow::Result<JoinHandle<()>> {
        let (tenant, maps, writer) = self.open().await?;
        if let Some(relay) = &tenant.relay {
            relay.mesh_with(&self.configuration.derp.mesh_with);
        }
        let network = Arc::clone(&tenant.network);
        tokio::spawn(async move { maps.follow(&network).await });
        let control = Arc::clone(&tenant.control);
        tokio::spawn(async move { control.wake_decided_requests().await });
        self.slot.set_started(tenant);
        Ok(writer)
    }

    /// Starts the network, with retries, and runs it. `tried` is set after the first attempt.
    ///
    /// # Errors
    /// The network has ended.
    pub(super) async fn start_and_run(
        self,
        tried: watch::Sender<bool>,
        listens: watch::Receiver<bool>,
    ) -> anyhow::Result<Infallible> {
        let mut last = String::new();
        let writer = loop {
            let started = self.start().await;
            tried.send_replace(true);
            match started {
                Ok(writer) => break writer,
                Err(error) => {
                    let words = format!("{} cannot start: {error:#}", self.configuration.named());
                    if words != last {
                        tracing::error!("{words}; retrying every {AGAIN:?}");
                    }
                    last = words;
                }
            }
            sleep(AGAIN).await;
        };
        self.run(writer, listens).await
    }

    /// Runs the started network, and prints how to join it once the server listens.
    ///
    /// # Errors
    /// Its writer has ended.
    pub(super) async fn run(
        self,
        writer: JoinHandle<()>,
        mut listens: watch::Receiver<bool>,
    ) -> anyhow::Result<Infallible> {
        listens.wait_for(|listens| *listens).await.context("the server is about to end")?;
        if let Some(tenant) = self.slot.tenant() {
            tracing::info!(key = %tenant.noise, "serving {}", tenant.url);
            tenant.network.warn_of_names();
            onboarding::print(tenant, self.configuration.name.as_ref(), self.is_unconfigured)
                .await?;
        }
        let what = || format!("the writer of {}", self.configuration.named());
        writer.await.with_context(what)?;
        Err(anyhow!("{} has ended", what()))
    }

    async fn open(&self) -> anyhow::Result<(Arc<Tenant>, Maps, JoinHandle<()>)> {
        let configuration = &self.configuration;
        let url = configuration.check()?.clone();
        let folder = &configuration.state_dir;
        let noise = files::machine_key(&folder.join(files::NOISE))?;
        let oidc = configuration.oidc.clone().map(|table| Oidc::new(table, &url)).transpose()?;
        let derp = &configuration.derp;
        let relay = derp.enabled.then(|| relay_parts(configuration)).transpose()?;
        let mut settings = configuration.settings(self.certificate.as_deref())?;
        let maps = Maps::new(&settings.relays, &derp.map_paths, &derp.map_urls, folder)?;
        settings.relays = maps.text();
        let store = Store::open(&configuration.database()?).await?;
        let key = noise.public().to_string();
        store.claim(&key).await?;
        let name = match store.is_shared() {
            true => base16ct::lower::encode_string(&Sha256::digest(&key)[..12]),
            // Names are not reused without a shared database, because connections do not
            // survive a restart.
            false => random_number()?,
        };
        let (network, writer) = NetworkState::open(store, settings).await?;
        let relay = relay.map(|(key, mesh, admission)| {
            let (counters, threads) = (&network.counters().relay, self.data_plane.clone());
            Arc::new(Relay::new(key, mesh, admission, counters, threads))
        });
        let (pings, paths) = (Arc::<Pings>::default(), Arc::<DataPaths>::default());
        let weak = || Arc::downgrade(&network);
        tokio::spawn(router_health::watch(weak(), Arc::clone(&pings), Arc::clone(&paths)));
        tokio::spawn(data_paths::watch(weak(), Arc::clone(&pings), paths));
        let admin_origin = admin_origin(configuration, &url);
        // The page uses the relay's port with its self-signed certificate.
        let own = self.certificate.as_ref().filter(|_| admin_origin != url);
        let fingerprint = own.map(|own| own.fingerprint());
        let public = noise.public();
        let join_command = format!("linerate join {url} --server-key {public}");
        let site = Arc::new(AdminSite::new(admin_origin, fingerprint, join_command));
        let (sessions, health) = (Arc::<Sessions>::default(), Arc::<Health>::default());
        let state = AdminState::new(
            Arc::clone(&network),
            Arc::clone(&site),
            Arc::clone(&sessions),
            Arc::clone(&pings),
            Arc::clone(&health),
        );
        let fronts = Fronts { api: api::router(state.clone()), page: page::router(state) };
        let parts = (Arc::clone(&network), pings, Arc::clone(&sessions));
        let control = Arc::new(ControlPlane::new(parts, noise, url.clone(), name));
        let tenant = Arc::new(Tenant {
            url,
            noise: public,
            network,
            control,
            relay,
            oidc,
            health,
            sessions,
            site,
            fronts,
        });
        Ok((tenant, maps, tokio::spawn(writer)))
    }
}

/// Origin of the administrators' page.
fn admin_origin(configuration: &Configuration, url: &ServerUrl) -> ServerUrl {
    match configuration.derp.listen.first() {
        Some(relay) if !url.is_https() => url.by_tls(relay.port()),
        _ => url.clone(),
    }
}

/// Parts of the relay, as configured.
fn relay_parts(
    configuration: &Configuration,
) -> anyhow::Result<(RelayKey, Option<Mesh>, Option<Admission>)> {
    let derp = &configuration.derp;
    let key = files::relay_key(&configuration.state_dir.join(files::RELAY))?;
    let mesh = derp.mesh_key_path.as_deref().map(files::mesh_key).transpose()?.map(Mesh::new);
    let admission = derp.verify_url.clone().map(Admission::new);
    Ok((key, mesh, admission))
}
