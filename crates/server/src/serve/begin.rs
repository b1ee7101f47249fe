//! A network begins: its keys, its store, its relay, and what looks after it. Where there are several, one
//! that cannot begin is tried again, and holds up no other.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, anyhow};
use sha2::{Digest, Sha256};
use tailnet::derp::RelayKey;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::sleep,
};

use super::{Server, welcome};
use crate::{
    address::ServerUrl,
    configuration::Configuration,
    data_paths::{self, DataPaths},
    derp::{Admission, Relay, maps::Maps, mesh::Mesh},
    files,
    health::Health,
    machine::{self, held::Held},
    network::Network,
    networks::Place,
    oidc::Oidc,
    own_certificate::OwnCertificate,
    pings::Pings,
    routers,
    store::Store,
    stream::{Packed, Turns},
};

/// The most streams of the page at once.
const STREAMS: usize = 64;
/// How soon a network that could not begin is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// What a network begins with.
#[derive(Clone)]
pub struct Beginning {
    /// Where it is put.
    pub place: Arc<Place>,
    /// Its configuration.
    pub configuration: Configuration,
    /// Its relay's own certificate, if it has one.
    pub certificate: Option<Arc<OwnCertificate>>,
    /// Whether nothing said where it is.
    pub picks: bool,
    /// The threads of its relay.
    pub data_plane: Handle,
}

impl Beginning {
    /// Has the network begin. The task that is returned keeps it.
    ///
    /// # Errors
    /// It cannot begin.
    pub async fn begin(&self) -> anyhow::Result<JoinHandle<()>> {
        let (server, maps, writer) = self.open().await?;
        tokio::spawn(routers::watch(Arc::downgrade(&server)));
        tokio::spawn(data_paths::watch(Arc::downgrade(&server)));
        if let Some(relay) = &server.relay {
            relay.mesh_with(&self.configuration.derp.mesh_with);
        }
        let network = Arc::clone(&server.network);
        tokio::spawn(async move { maps.follow(&network).await });
        let holding = Arc::clone(&server);
        tokio::spawn(async move { holding.held.follow(&holding.network).await });
        self.place.begun(server);
        Ok(writer)
    }

    /// Has the network begin, tries again until it does, and keeps it. `tried` hears of the first time.
    ///
    /// # Errors
    /// It is kept no more.
    pub async fn begin_and_keep(
        self,
        tried: watch::Sender<bool>,
        listens: watch::Receiver<bool>,
    ) -> anyhow::Result<Infallible> {
        let mut last = String::new();
        let writer = loop {
            let begun = self.begin().await;
            tried.send_replace(true);
            match begun {
                Ok(writer) => break writer,
                Err(error) => {
                    let words = format!("{} cannot begin: {error:#}", self.configuration.named());
                    if words != last {
                        tracing::error!("{words}; it is tried again every {AGAIN:?}");
                    }
                    last = words;
                }
            }
            sleep(AGAIN).await;
        };
        self.keep(writer, listens).await
    }

    /// Keeps the network, which has begun, and says how one gets in once the server listens.
    ///
    /// # Errors
    /// The task that keeps it has ended.
    pub async fn keep(
        self,
        writer: JoinHandle<()>,
        mut listens: watch::Receiver<bool>,
    ) -> anyhow::Result<Infallible> {
        listens.wait_for(|listens| *listens).await.context("the server is about to end")?;
        if let Some(server) = self.place.server() {
            tracing::info!(key = %server.noise.public(), "serving {}", server.url);
            server.network.warn_of_names();
            welcome::welcome(server, self.configuration.name.as_ref(), self.picks).await?;
        }
        let what = || format!("the task that keeps {}", self.configuration.named());
        writer.await.with_context(what)?;
        Err(anyhow!("{} has ended", what()))
    }

    async fn open(&self) -> anyhow::Result<(Arc<Server>, Maps, JoinHandle<()>)> {
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
            // Another server than the one before: who is connected is not kept.
            false => machine::random_number()?,
        };
        let (network, writer) = Network::open(store, settings).await?;
        let relay = relay.map(|(key, mesh, admission)| {
            let (counted, threads) = (&network.counted().relay, self.data_plane.clone());
            Arc::new(Relay::new(key, mesh, admission, counted, threads))
        });
        let admin_origin = admin_origin(configuration, &url);
        // The page is at the port of the relay, which signed its certificate itself.
        let own = self.certificate.as_ref().filter(|_| admin_origin != url);
        let server = Arc::new(Server {
            admin_fingerprint: own.map(|own| own.fingerprint()),
            admin_origin,
            url,
            noise,
            name,
            network,
            relay,
            packed: Packed::default(),
            pings: Pings::default(),
            data_paths: DataPaths::default(),
            held: Held::default(),
            turns: Turns::default(),
            oidc,
            sessions: Arc::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            health: Health::default(),
            fronts: OnceLock::new(),
        });
        Ok((server, maps, tokio::spawn(writer)))
    }
}

/// Where browsers find the page.
fn admin_origin(configuration: &Configuration, url: &ServerUrl) -> ServerUrl {
    match configuration.derp.listen.first() {
        Some(relay) if !url.is_https() => url.by_tls(relay.port()),
        _ => url.clone(),
    }
}

/// What the relay is made of, as it is configured.
fn relay_parts(
    configuration: &Configuration,
) -> anyhow::Result<(RelayKey, Option<Mesh>, Option<Admission>)> {
    let derp = &configuration.derp;
    let key = files::relay_key(&configuration.state_dir.join(files::RELAY))?;
    let mesh = derp.mesh_key_path.as_deref().map(files::mesh_key).transpose()?.map(Mesh::new);
    let admission = derp.verify_url.clone().map(Admission::new);
    Ok((key, mesh, admission))
}
