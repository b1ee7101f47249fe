//! The authorities that the server trusts when it asks others by TLS: those that this machine trusts.

use rustls::{ClientConfig, RootCertStore};

/// What TLS is spoken with to others.
pub fn client() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    ClientConfig::builder_with_provider(kx::provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
