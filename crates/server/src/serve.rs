//! The life of the server: where it listens, and which networks begin.

mod begin;
mod welcome;

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

use self::begin::Beginning;
pub use self::welcome::about_certificate;
use crate::{
    address::ServerUrl,
    api,
    configuration::Configuration,
    data_paths::DataPaths,
    derp::Relay,
    files,
    health::Health,
    life::Surroundings,
    listen,
    machine::held::Held,
    metrics,
    network::Network,
    networks::Networks,
    oidc::Oidc,
    own_certificate::OwnCertificate,
    page,
    pings::Pings,
    sessions::Sessions,
    stream::{Packed, Turns},
    stun,
    tls::{Acceptors, Tls},
};

/// Of several networks those that have not begun by then are not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A network, with what its connections share: there is nothing of any other network in it.
pub struct Server {
    /// Where clients find it.
    pub(crate) url: ServerUrl,
    /// Where browsers find the page: they keep its cookie for TLS alone.
    pub(crate) admin_origin: ServerUrl,
    /// The fingerprint of the certificate that they find there, if it signed itself.
    pub(crate) admin_fingerprint: Option<String>,
    /// The key of Noise.
    pub(crate) noise: MachineKey,
    /// The network's name in streams: the same at all its servers, if there may be several.
    pub(crate) name: String,
    /// The network.
    pub(crate) network: Arc<Network>,
    /// The relay, if it is one.
    pub(crate) relay: Option<Arc<Relay>>,
    /// Who vouches for users, if somebody does.
    pub(crate) oidc: Option<Oidc>,
    /// Frames that several clients are told.
    pub(crate) packed: Packed,
    /// What clients are asked.
    pub(crate) pings: Pings,
    /// Which routers carry data.
    pub(crate) data_paths: DataPaths,
    /// Requests to register that are held.
    pub(crate) held: Held,
    /// Turns of clients that are sent a whole map.
    pub(crate) turns: Turns,
    /// Sessions of the page.
    pub(crate) sessions: Arc<Sessions>,
    /// Room for streams of the page.
    pub(crate) streams: Arc<Semaphore>,
    /// Whether all is well.
    pub(crate) health: Health,
    /// What answers administrators. It has the server in turn: both last as long as the process.
    pub(crate) fronts: OnceLock<Fronts>,
}

/// What answers administrators.
pub struct Fronts {
    /// Their programs.
    pub(crate) api: Router,
    /// Their browsers.
    pub(crate) page: Router,
}

impl Server {
    /// The command by which a linerate joins, without an auth key.
    pub(crate) fn join_command(&self) -> String {
        format!("linerate join {} --server-key {}", self.url, self.noise.public())
    }

    /// The link that opens the page with this token. What stands behind the number sign is not sent
    /// when the link is opened, and is in nobody's log.
    pub(crate) fn admin_link(&self, token: &str) -> String {
        format!("{}/admin/login#{token}", self.admin_origin)
    }

    /// What answers administrators.
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
/// It cannot begin.
pub async fn serve(configuration: Configuration) -> anyhow::Result<()> {
    serve_in(configuration, Surroundings::default()).await
}

/// The same, with what the process was started with.
///
/// # Errors
/// It cannot begin.
pub async fn serve_in(
    configuration: Configuration,
    surroundings: Surroundings,
) -> anyhow::Result<()> {
    let data_plane = surroundings.data_plane();
    let picks = configuration.server_url.is_none();
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
    let networks = Arc::new(Networks::new(&each, acme));
    let beginnings = networks.all().iter().zip(each).map(|(place, configuration)| Beginning {
        place: Arc::clone(place),
        configuration,
        certificate: certificate.clone(),
        picks,
        data_plane: data_plane.clone(),
    });
    let beginnings: Vec<Beginning> = beginnings.collect();
    // What is confined later makes no folder and no socket.
    let mut commands = Vec::new();
    for Beginning { place, configuration, .. } in &beginnings {
        files::make_folder(&configuration.state_dir)?;
        commands.push((Arc::clone(place), api::bind(&configuration.socket)?));
    }
    let (listens, is_listening) = watch::channel(false);
    let kept = begin(beginnings, is_listening).await?;
    listen_everywhere(&networks, &configuration, &tls.acceptors, &data_plane).await?;
    for (place, listener) in commands {
        tokio::spawn(api::serve(place, listener));
    }
    let of_strangers = Arc::clone(&networks);
    tokio::spawn(async move { of_strangers.visitors.release_memory().await });
    surroundings.begun(&networks, tls.follow())?;
    listens.send_replace(true);
    match kept.await? {}
}

/// Has all networks begin. One that is alone has begun, or it is an error; others are tried again. What is
/// returned waits until one is kept no more.
async fn begin(
    mut beginnings: Vec<Beginning>,
    is_listening: watch::Receiver<bool>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<Infallible>>> {
    let mut tasks = JoinSet::new();
    if let [only] = &*beginnings {
        let writer = only.begin().await?;
        tasks.spawn(only.clone().keep(writer, is_listening.clone()));
        beginnings.clear();
    }
    let mut tried = Vec::new();
    for beginning in beginnings {
        let (sender, is_tried) = watch::channel(false);
        tasks.spawn(beginning.begin_and_keep(sender, is_listening.clone()));
        tried.push(is_tried);
    }
    let all = async {
        for mut is_tried in tried {
            // Without a sender it was kept, and is no more.
            let _ = is_tried.wait_for(|is| *is).await;
        }
    };
    let _ = timeout(PATIENCE, all).await;
    Ok(async move {
        let ended = tasks.join_next().await.context("there is no network")?;
        ended.context("a network")?
    })
}

async fn listen_everywhere(
    networks: &Arc<Networks>,
    configuration: &Configuration,
    tls: &Acceptors,
    data_plane: &Handle,
) -> anyhow::Result<()> {
    let serve = |listener, tls| {
        let serving = listen::serve(Arc::clone(networks), listener, tls, Handle::current());
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
            Err(error) => welcome::warn_of_clients_without_tls(
                configuration.server_url.as_ref(),
                &format!("{error:#}"),
            ),
        }
    }
    for url in configuration.urls_without_tls() {
        welcome::warn_of_clients_without_tls(Some(&url), "the server does not listen there");
    }
    for address in &configuration.metrics_listen {
        let listener = listen::bind(*address).await?;
        tokio::spawn(metrics::serve(Arc::clone(networks), listener));
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
