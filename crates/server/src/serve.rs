//! The life of the server.

use std::sync::Arc;

use crate::{
    address::ServerUrl, api, configuration::Configuration, derp::Relay, files, listen,
    network::Network, oidc::Oidc, store::Store, stream::Packed, stun, visitors::Visitors,
};
use anyhow::Context;
use tailnet::keys::MachineKey;

/// What all connections share.
pub struct Server {
    /// Where clients find it.
    pub(crate) url: ServerUrl,
    /// The key of Noise.
    pub(crate) noise: MachineKey,
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
}

/// Runs until a signal ends it.
///
/// # Errors
/// It cannot begin.
pub async fn serve(configuration: Configuration) -> anyhow::Result<()> {
    let url = configuration.check()?.clone();
    let folder = &configuration.state_dir;
    files::make_folder(folder)?;
    let noise = files::machine_key(&folder.join("noise.key"))?;
    let relay = match configuration.derp.enabled {
        true => Some(Relay::new(files::relay_key(&folder.join("derp.key"))?)),
        false => None,
    };
    let oidc = configuration.oidc.clone().map(|table| Oidc::new(table, &url)).transpose()?;
    let store = Store::open(&folder.join("store.sqlite")).await?;
    let (network, writer) = Network::open(store, configuration.settings()?).await?;
    let writer = tokio::spawn(writer);
    let (packed, visitors) = (Packed::default(), Visitors::default());
    let server = Arc::new(Server { url, noise, network, relay, oidc, visitors, packed });
    let commands = api::bind(&configuration.socket)?;
    listen_everywhere(&server, &configuration).await?;
    tokio::spawn(api::serve(Arc::clone(&server), commands));
    tracing::info!("serving {}", server.url);
    // A signal ends the process as it is: what was acknowledged is on the disk. (tokio's feature for
    // signals, which cargo would enable for `linerate` beside it, is none of that sandbox's.)
    writer.await.context("the task that keeps the network")
}

async fn listen_everywhere(
    server: &Arc<Server>,
    configuration: &Configuration,
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
        for address in &configuration.derp.stun_listen {
            let socket = stun::bind(*address).await;
            let socket = socket.with_context(|| format!("listening for STUN at {address}"))?;
            tokio::spawn(stun::answer(socket));
        }
    }
    Ok(())
}
