//! What a network without users is told at its start: how its first administrator and machines get in.

use std::time::Duration;

use anyhow::Context;
use coordinator::{NewKey, object::User, secret};

use super::Server;
use crate::{
    clock::now,
    configuration::{NetworkName, ServerUrl, TLS_PORT},
};

/// The user of a network that nobody configured.
const FIRST_USER: &str = "admin";
/// How long that user's first key is good for.
const FIRST_KEY: Duration = Duration::from_secs(60 * 60);

/// Says how the first administrator gets in, for as long as the network has no user; and in a network
/// that nobody configured, how the first machines do.
pub async fn welcome(
    server: &Server,
    name: Option<&NetworkName>,
    picks: bool,
) -> anyhow::Result<()> {
    if server.network.read(|state| state.users().next().is_some()) {
        return Ok(());
    }
    if picks {
        let (url, key) = (&server.url, first_key(server).await?);
        println!("Machines join, within an hour, by one of\n");
        println!("    {} --auth-key {key}", server.join_command());
        println!("    tailscale up --login-server {url} --auth-key {key}\n");
    }
    let link = server.admin_link(&server.sessions.make_link(now())?);
    let of_which = name.map(|name| format!(" of the network {name}")).unwrap_or_default();
    println!(
        "The administration{of_which}, for the first to open it within an hour:\n\n    {link}\n"
    );
    if let Some(fingerprint) = &server.admin_fingerprint {
        println!("{}\n", about_certificate(fingerprint));
    }
    Ok(())
}

/// What to compare before a browser is told to trust the certificate behind a link.
pub fn about_certificate(fingerprint: &str) -> String {
    format!(
        "A browser warns of the certificate there, which is self-signed. Go on only if the SHA-256 \
         fingerprint of the certificate is\n\n    {fingerprint}"
    )
}

/// Warns that Tailscale's clients do not come back after an interruption, and why.
pub fn warn_of_clients_without_tls(url: Option<&ServerUrl>, why: &str) {
    let host = url.map_or("the host", ServerUrl::host);
    tracing::warn!(
        "after an interruption, Tailscale's clients connect only to port {TLS_PORT} of {host}, by TLS, and \
         do not come back: {why}. Give the server a name and a certificate: `server_url = \
         \"https://NAME\"`, `listen = [\"[::]:443\"]` and `[acme]`"
    );
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
