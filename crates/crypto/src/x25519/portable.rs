//! x25519-dalek, for every processor.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::x25519::Secret;

/// Returns the public key of a private key.
pub fn public_key(private: &[u8; 32]) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(*private)).to_bytes()
}

/// Returns the shared secret, or `None` if it is zero.
pub fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Secret> {
    let shared = StaticSecret::from(*private).diffie_hellman(&PublicKey::from(*public));
    shared.was_contributory().then(|| Zeroizing::new(shared.to_bytes()))
}
