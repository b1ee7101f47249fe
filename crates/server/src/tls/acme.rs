//! Certificates from an ACME authority (RFC 8555), which are renewed before they expire. The
//! authority's challenges are answered at the same address as all other requests (RFC 8737), or
//! without TLS at port 80 (RFC 8555, section 8.3).

use std::{path::Path, sync::Arc};

use futures_util::StreamExt;
use hyper::{Response, StatusCode};
use rustls_acme::{
    AcmeConfig, EventOk, ResolvesServerCertAcme, UseChallenge,
    acme::LETS_ENCRYPT_PRODUCTION_DIRECTORY, caches::DirCache,
};
use serde::Deserialize;

use crate::{
    http::body::{Answer, text},
    net::roots,
    process::files,
};

/// Path of the challenges without TLS.
pub(crate) const ROOT: &str = "/.well-known/acme-challenge/";
/// Folder of the certificate and the account, in the state folder.
pub(crate) const FOLDER: &str = "acme";

/// The table `[acme]` of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmeTable {
    /// Names in the certificate. By default, the hosts of the networks' URLs.
    #[serde(default)]
    pub domains: Vec<Domain>,
    /// Mail address for messages of the authority.
    pub email: Option<String>,
    /// URL of the authority's directory.
    #[serde(default)]
    pub directory: Directory,
    /// How the authority verifies that the names belong to this server.
    #[serde(default)]
    pub challenge: Challenge,
}

/// A DNS name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Domain(String);

/// URL of an authority's directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Directory(String);

/// How an authority verifies a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Challenge {
    /// By TLS, at port 443.
    #[default]
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn,
    /// By HTTP, at port 80.
    #[serde(rename = "http-01")]
    Http,
}

impl TryFrom<String> for Domain {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_label = |label: &str| {
            let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'-';
            (1..64).contains(&label.len()) && label.bytes().all(is_letter)
        };
        let is_address = text.rsplit('.').next().is_some_and(|last| last.parse::<u32>().is_ok());
        match text.len() < 254 && text.split('.').all(is_label) && !is_address {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(format!("{text:?} is not a name that can get a certificate by ACME")),
        }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self(LETS_ENCRYPT_PRODUCTION_DIRECTORY.to_owned())
    }
}

impl TryFrom<String> for Directory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let uri = text.parse::<hyper::Uri>().ok();
        let is_good = uri.is_some_and(|uri| uri.scheme_str() == Some("https"));
        is_good
            .then(|| Self(text.clone()))
            .ok_or_else(|| format!("{text:?} is not an https:// URL"))
    }
}

/// ACME client of the server.
pub(crate) struct Acme {
    /// Resolver that has the certificate as soon as the authority has issued it.
    pub resolver: Arc<ResolvesServerCertAcme>,
    state: rustls_acme::AcmeState<std::io::Error>,
}

impl Acme {
    /// Creates a client for these hosts, which loads an earlier certificate from the folder.
    ///
    /// # Errors
    /// A host cannot get a certificate, or the folder cannot be created.
    pub(crate) fn new(table: &AcmeTable, hosts: &[&str], folder: &Path) -> anyhow::Result<Self> {
        let domains = match table.domains.is_empty() {
            true => hosts.iter().map(|host| own_domain(host)).collect::<anyhow::Result<_>>()?,
            false => table.domains.clone(),
        };
        let folder = folder.join(FOLDER);
        files::make_folder(&folder)?;
        let domains = domains.into_iter().map(|Domain(name)| name);
        let config = AcmeConfig::new_with_client_config(domains, roots::client())
            .contact(table.email.iter().map(|email| format!("mailto:{email}")))
            .directory(&table.directory.0)
            .challenge_type(match table.challenge {
                Challenge::TlsAlpn => UseChallenge::TlsAlpn01,
                Challenge::Http => UseChallenge::Http01,
            })
            .cache(DirCache::new(folder));
        let state = config.state();
        Ok(Self { resolver: state.resolver(), state })
    }

    /// Obtains and renews the certificate while the server runs.
    pub(crate) async fn follow(mut self) {
        while let Some(event) = self.state.next().await {
            match event {
                Ok(EventOk::DeployedNewCert) => {
                    tracing::info!("ACME: a new certificate is in force");
                }
                Ok(EventOk::DeployedCachedCert) => {
                    tracing::info!("ACME: the certificate is in force");
                }
                Ok(EventOk::CertCacheStore | EventOk::AccountCacheStore) => {}
                Err(error) => tracing::error!("ACME failed and is retried: {error}"),
            }
        }
    }
}

fn own_domain(host: &str) -> anyhow::Result<Domain> {
    let domain = Domain::try_from(host.to_owned());
    domain.map_err(|error| {
        anyhow::anyhow!("{error}: set `domains` in [acme], or use a name in `server_url`")
    })
}

/// Answers a challenge without TLS.
pub(crate) fn answer(resolver: &ResolvesServerCertAcme, path: &str) -> Response<Answer> {
    match path.strip_prefix(ROOT).and_then(|token| resolver.get_http_01_key_auth(token)) {
        Some(proof) => text(StatusCode::OK, &proof),
        None => text(StatusCode::NOT_FOUND, "unknown challenge\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_acme_table_name_line_and_key() {
        let read = |text: &str| toml::from_str::<AcmeTable>(text);
        let table = read("domains = [\"Net.Example.com\"]\nchallenge = \"http-01\"").unwrap();
        assert_eq!(table.domains, [Domain("net.example.com".into())]);
        assert_eq!((table.challenge, table.directory), (Challenge::Http, Directory::default()));
        for (text, line, key) in [
            ("email = \"a@b\"\ndomains = [\"10.0.0.1\"]", "line 2", "domains"),
            ("domains = [\"a..b\"]", "line 1", "domains"),
            ("domains = [\"*.a\"]", "line 1", "domains"),
            ("directory = \"http://a\"", "line 1", "directory"),
            ("challenge = \"dns-01\"", "line 1", "challenge"),
            ("emails = 1", "line 1", "emails"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(key), "{text}: {error}");
        }
    }

    #[test]
    fn acme_for_an_ip_address_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let table: AcmeTable = toml::from_str("").unwrap();
        let error = Acme::new(&table, &["a.example", "192.0.2.1"], folder.path())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("192.0.2.1") && error.contains("domains"), "{error}");
        assert!(Acme::new(&table, &["net.example.com"], folder.path()).is_ok());
    }
}
