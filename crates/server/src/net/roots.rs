//! Certificate authorities of this machine, which the server trusts for TLS to other servers.

use std::sync::{Arc, LazyLock};

use rustls::{ClientConfig, RootCertStore};

/// The authorities are loaded once.
static CLIENT: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(crypto::tls::provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
});

/// TLS configuration for connections to other servers.
pub(crate) fn client() -> Arc<ClientConfig> {
    Arc::clone(&CLIENT)
}
