//! TLS acceptors of the listeners.

use std::sync::Arc;

use anyhow::Context;
use rustls::{
    ConfigBuilder, ServerConfig, WantsVerifier,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::ResolvesServerCert,
};
use rustls_acme::acme::ACME_TLS_ALPN_NAME;
use tokio_rustls::TlsAcceptor;

/// ALPN name of the protocol inside TLS.
const HTTP: &[u8] = b"http/1.1";

/// TLS acceptor with the resolver's current certificate. With `acme`, it answers TLS-ALPN challenges
/// as well.
///
/// # Errors
/// The library supports no TLS version.
pub(super) fn with_resolver(
    resolver: Arc<dyn ResolvesServerCert>,
    acme: bool,
) -> anyhow::Result<TlsAcceptor> {
    let mut config = builder()?.with_no_client_auth().with_cert_resolver(resolver);
    let authority = acme.then(|| ACME_TLS_ALPN_NAME.to_vec());
    config.alpn_protocols = [HTTP.to_vec()].into_iter().chain(authority).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// TLS acceptor with one certificate.
///
/// # Errors
/// The certificate and the key do not match.
pub(super) fn with_certificate(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<TlsAcceptor> {
    let mut config = builder()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("the certificate and the key do not match")?;
    config.alpn_protocols = vec![HTTP.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn builder() -> anyhow::Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
    Ok(ServerConfig::builder_with_provider(crypto::tls::provider())
        .with_safe_default_protocol_versions()?)
}
