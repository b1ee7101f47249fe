//! TLS certificates of a server, from files or an ACME authority, and of its relay.

mod acceptor;
pub(crate) mod acme;
pub(crate) mod certificates;
pub(crate) mod own_certificate;

use std::{path::Path, sync::Arc};

use tokio_rustls::TlsAcceptor;

use self::{acme::Acme, certificates::Certificates, own_certificate::OwnCertificate};
use crate::{configuration::Configuration, net::address::ServerUrl};

/// TLS acceptors, and the tasks that renew certificates.
pub(crate) struct Tls {
    /// The acceptors.
    pub acceptors: Acceptors,
    /// The ACME client, if configured.
    pub acme: Option<Acme>,
    files: Option<Arc<Certificates>>,
}

/// TLS acceptors.
pub(crate) struct Acceptors {
    /// For all requests.
    pub all: Option<TlsAcceptor>,
    /// For the relay's own listeners.
    pub relay: Option<TlsAcceptor>,
}

impl Tls {
    /// Creates the acceptors of a server.
    ///
    /// # Errors
    /// The files cannot be read or do not match, or the ACME configuration is invalid.
    pub(crate) fn of(
        configuration: &Configuration,
        own: Option<&OwnCertificate>,
    ) -> anyhow::Result<Self> {
        let Configuration { tls_certificate, tls_key, state_dir, .. } = configuration;
        let relay = own.map(OwnCertificate::tls).transpose()?;
        let each = configuration.each();
        let urls = each.iter().filter_map(|own| own.server_url.as_ref());
        let hosts: Vec<&str> = urls.map(ServerUrl::host).collect();
        let acme = configuration.acme.as_ref();
        let acme = acme.map(|table| Acme::new(table, &hosts, state_dir)).transpose()?;
        let files = pair(tls_certificate.as_deref(), tls_key.as_deref());
        let files = files.map(|(chain, key)| Certificates::read(chain, key)).transpose()?;
        let files = files.map(Arc::new);
        let all = match (&acme, &files) {
            (Some(acme), _) => {
                Some(acceptor::with_resolver(Arc::clone(&acme.resolver) as _, true)?)
            }
            (None, Some(files)) => Some(acceptor::with_resolver(Arc::clone(files) as _, false)?),
            (None, None) => None,
        };
        Ok(Self { acceptors: Acceptors { all, relay }, acme, files })
    }

    /// Starts renewing the certificates. The returned value reloads certificate files on
    /// request.
    pub(crate) fn follow(self) -> Option<Arc<Certificates>> {
        if let Some(acme) = self.acme {
            tokio::spawn(acme.follow());
        }
        if let Some(files) = self.files.clone() {
            tokio::spawn(async move { files.follow().await });
        }
        self.files
    }
}

fn pair<'a>(chain: Option<&'a Path>, key: Option<&'a Path>) -> Option<(&'a Path, &'a Path)> {
    chain.zip(key)
}
