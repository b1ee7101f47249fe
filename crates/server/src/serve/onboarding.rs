//! Instructions for a network without users: how its first administrator and machines join.

use std::time::Duration;

use anyhow::Context;
use coordinator::{NewKey, object::User, secret};

use crate::{
    clock::now,
    configuration::{NetworkName, ServerUrl, TLS_PORT},
    tenants::tenant::Tenant,
    tls::own_certificate::certificate_hint,
};

/// First user of an unconfigured network.
const FIRST_USER: &str = "admin";
/// Lifetime of that user's first key.
const FIRST_KEY: Duration = Duration::from_secs(60 * 60);

/// Prints how the first administrator gets access while the network has no users. For an
/// unconfigured network, also prints how machines join.
pub(super) async fn print(
    tenant: &Tenant,
    name: Option<&NetworkName>,
    is_unconfigured: bool,
) -> anyhow::Result<()> {
    if tenant.network.read(|state| state.users().next().is_some()) {
        return Ok(());
    }
    if is_unconfigured {
        let (url, key) = (&tenant.url, first_key(tenant).await?);
        println!("Machines can join within an hour with one of\n");
        println!("    {} --auth-key {key}", tenant.site.join_command());
        println!("    tailscale up --login-server {url} --auth-key {key}\n");
    }
    let link = tenant.site.link(&tenant.sessions.make_link(now())?);
    let of_which = name.map(|name| format!(" of the network {name}")).unwrap_or_default();
    println!(
        "Administrators' page{of_which}. The link works once, within an hour:\n\n    {link}\n"
    );
    if let Some(fingerprint) = tenant.site.fingerprint() {
        println!("{}\n", certificate_hint(fingerprint));
    }
    Ok(())
}

/// Warns that Tailscale's clients do not reconnect after an interruption, and why.
pub(super) fn warn_of_clients_without_tls(url: Option<&ServerUrl>, why: &str) {
    let host = url.map_or("the host", ServerUrl::host);
    tracing::warn!(
        "after an interruption, Tailscale's clients connect only to port {TLS_PORT} of {host}, with TLS, and \
         do not reconnect: {why}. Give the server a name and a certificate: `server_url = \
         \"https://NAME\"`, `listen = [\"[::]:443\"]` and `[acme]`"
    );
}

/// Creates the first user and a key for machines.
async fn first_key(tenant: &Tenant) -> anyhow::Result<String> {
    let mut random = [0; 38];
    getrandom::fill(&mut random).context("randomness")?;
    let text = secret::write(&random);
    let own = text.clone();
    let made = tenant.network.run(move |state, now| {
        let name = FIRST_USER.to_owned();
        let user = state.create_user(User { name, ..User::default() }, now)?.id;
        let expires = Some(now.after(FIRST_KEY));
        let new = NewKey { user: Some(user), reusable: true, expires, ..NewKey::default() };
        state.create_key(new, &own, now)
    });
    made.await??;
    Ok(text)
}
