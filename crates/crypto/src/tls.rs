//! Floor 0: the cryptography of TLS connections. It is ring's, with the post-quantum key exchange
//! X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem) added as the first group. That combines ring's
//! X25519 with the ML-KEM-768 crate that is a dependency already (docs/decisions/0016).
mod hybrid;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// Returns the cryptography for TLS connections. X25519MLKEM768 is offered first, and the same
/// message contains a share of X25519 for other sides.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.kx_groups.insert(0, &hybrid::X25519MlKem768);
    Arc::new(provider)
}

#[cfg(test)]
mod tests;
