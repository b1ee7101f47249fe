//! The authorities that the server trusts when it asks others by TLS: those that this machine trusts.

use std::sync::{Arc, LazyLock};

use rustls::{ClientConfig, RootCertStore};

/// They are read once.
static CLIENT: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(kx::provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
});

/// What TLS is spoken with to others.
pub fn client() -> Arc<ClientConfig> {
    Arc::clone(&CLIENT)
}
