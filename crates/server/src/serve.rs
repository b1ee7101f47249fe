//! The life of the server.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    address::ServerUrl, api, clock::now, configuration::Configuration, derp::Relay, files, listen,
    machine, network::Network, oidc::Oidc, own_certificate::OwnCertificate, page,
    sessions::Sessions, store::Store, stream::Packed, stun, visitors::Visitors,
};
use anyhow::Context;
use axum::Router;
use coordinator::{NewKey, object::User, secret};
use tailnet::keys::MachineKey;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// The most streams of the page at once.
const STREAMS: usize = 64;

/// The user of a network that nobody configured.
const FIRST_USER: &str = "admin";
/// How long that user's first key is good for.
const FIRST_KEY: Duration = Duration::from_secs(60 * 60);

/// What all connections share.
pub struct Server {
    /// Where clients find it.
    pub(crate) url: ServerUrl,
    /// Where browsers find the page: they keep its cookie for TLS alone.
    pub(crate) admin_origin: String,
    /// The key of Noise.
    pub(crate) noise: MachineKey,
    /// Another each time that the server starts.
    pub(crate) instance: String,
    /// The network.
    pub(crate) network: Arc<Network>,
    /// The relay, if it is one.
    pub(crate) relay: Option<Relay>,
    /// Who vouches for users, if somebody does.
    pub(crate) oidc: Option<Oidc>,
    /// Who is connected.
    pub(crate) visitors: Visitors,
    /// Frames that several clients are told.
    pub(crate) packed: Packed,
    /// Sessions of the page.
    pub(crate) sessions: Sessions,
    /// Room for streams of the page.
    pub(crate) streams: Arc<Semaphore>,
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

/// Runs until a signal ends it.
///
/// # Errors
/// It cannot begin.
pub async fn serve(configuration: Configuration) -> anyhow::Result<()> {
    let picks = configuration.server_url.is_none();
    let configuration = configuration.complete();
    let url = configuration.check()?.clone();
    let folder = &configuration.state_dir;
    files::make_folder(folder)?;
    let noise = files::machine_key(&folder.join(files::NOISE))?;
    let relay = match configuration.derp.enabled {
        true => Some(Relay::new(files::relay_key(&folder.join(files::RELAY))?)),
        false => None,
    };
    let oidc = configuration.oidc.clone().map(|table| Oidc::new(table, &url)).transpose()?;
    let store = Store::open(&folder.join(files::STORE)).await?;
    let certificate = match configuration.derp.enabled && !configuration.derp.listen.is_empty() {
        true => Some(OwnCertificate::of(folder, url.host())?),
        false => None,
    };
    let settings = configuration.settings(certificate.as_ref())?;
    let (network, writer) = Network::open(store, settings).await?;
    let writer = tokio::spawn(writer);
    let admin_origin = match configuration.derp.listen.first() {
        Some(relay) if !url.is_https() => url.by_tls(relay.port()).to_string(),
        _ => url.to_string(),
    };
    let server = Arc::new(Server {
        url,
        admin_origin,
        noise,
        instance: machine::random_number()?,
        network,
        relay,
        packed: Packed::default(),
        oidc,
        visitors: Visitors::default(),
        sessions: Sessions::default(),
        streams: Arc::new(Semaphore::new(STREAMS)),
        fronts: OnceLock::new(),
    });
    let commands = api::bind(&configuration.socket)?;
    let relay_tls = certificate.map(|certificate| certificate.tls()).transpose()?;
    listen_everywhere(&server, &configuration, relay_tls).await?;
    tokio::spawn(api::serve(server.fronts().api.clone(), commands));
    tracing::info!("serving {}", server.url);
    welcome(&server, picks).await?;
    // A signal ends the process as it is: what was acknowledged is on the disk. (tokio's feature for
    // signals, which cargo would enable for `linerate` beside it, is none of that sandbox's.)
    writer.await.context("the task that keeps the network")
}

/// Says how the first administrator gets in, for as long as the network has no user; and in a network
/// that nobody configured, how the first machines do.
async fn welcome(server: &Server, picks: bool) -> anyhow::Result<()> {
    if server.network.read(|state| state.users().next().is_some()) {
        return Ok(());
    }
    if picks {
        let (url, key) = (&server.url, first_key(server).await?);
        println!("Machines join, within an hour, by one of\n");
        println!("    linerate join {url} --auth-key {key}");
        println!("    tailscale up --login-server {url} --auth-key {key}\n");
    }
    let link = server.admin_link(&server.sessions.make_link(now())?);
    println!("The administration, for the first to open it within an hour:\n\n    {link}\n");
    Ok(())
}

/// A key that machines join by, of the first user.
async fn first_key(server: &Server) -> anyhow::Result<String> {
    let mut random = [0; 38];
    getrandom::fill(&mut random).context("randomness")?;
    let text = secret::write(&random);
    let own = text.clone();
    let made = server.network.run(move |state, now| {
        let name = FIRST_USER.to_owned();
        let user = state.create_user(User { name, ..User::default() }, now)?.id;
        let expires = Some(now.after(FIRST_KEY));
        let new = NewKey { user: Some(user), reusable: true, expires, ..NewKey::default() };
        state.create_key(new, &own, now)
    });
    made.await??;
    Ok(text)
}

async fn listen_everywhere(
    server: &Arc<Server>,
    configuration: &Configuration,
    relay_tls: Option<TlsAcceptor>,
) -> anyhow::Result<()> {
    let tls = match (&configuration.tls_certificate, &configuration.tls_key) {
        (Some(certificate), Some(key)) => Some(listen::tls(certificate, key)?),
        _ => None,
    };
    for address in &configuration.listen {
        let listener = listen::bind(*address).await?;
        tokio::spawn(listen::serve(Arc::clone(server), listener, tls.clone()));
    }
    for address in &configuration.listen_plain {
        let listener = listen::bind(*address).await?;
        tokio::spawn(listen::serve(Arc::clone(server), listener, None));
    }
    if server.relay.is_some() {
        for address in &configuration.derp.listen {
            let listener = listen::bind(*address).await?;
            tokio::spawn(listen::serve(Arc::clone(server), listener, relay_tls.clone()));
        }
        for address in &configuration.derp.stun_listen {
            let socket = stun::bind(*address).await;
            let socket = socket.with_context(|| format!("listening for STUN at {address}"))?;
            tokio::spawn(stun::answer(socket));
        }
    }
    Ok(())
}
