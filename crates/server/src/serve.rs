//! Runs the server: starts its networks, and opens its listeners.

mod onboarding;
mod start;

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};

use self::start::TenantStart;
use crate::{
    admin::api,
    configuration::Configuration,
    http::{listen, metrics},
    net::stun,
    process::{context::ProcessContext, files},
    tenants::Tenants,
    tls::{Acceptors, Tls, own_certificate::OwnCertificate},
};

/// How long the listeners wait for networks that are slow to start, if there are several.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the process ends, on the current runtime and without a sandbox.
///
/// # Errors
/// The server cannot start.
pub async fn serve(configuration: Configuration) -> anyhow::Result<()> {
    serve_in(configuration, ProcessContext::new(None, None, Handle::current())).await
}

/// Runs until the process ends, in this context.
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
        let router = move || slot.tenant().map(|tenant| tenant.fronts.api.clone());
        tokio::spawn(api::serve(listener, router));
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
