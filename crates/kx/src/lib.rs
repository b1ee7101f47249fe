//! Floor 0: the cryptography of TLS connections. It is ring's, which knows no key exchange that
//! holds against quantum computers; so X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem) stands before
//! its own, of ring's X25519 and the ML-KEM-768 that is there anyway (docs/decisions/0016).
#![forbid(unsafe_code)]

mod hybrid;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// What TLS connections are made with. A side that knows X25519MLKEM768 is offered it first, and any
/// other has X25519 in the same message.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.kx_groups.insert(0, &hybrid::X25519MlKem768);
    Arc::new(provider)
}

#[cfg(test)]
mod tests;
