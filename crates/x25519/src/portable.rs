//! curve25519-dalek's, on every processor.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::Secret;

/// The public key of a private one.
pub fn public_key(private: &[u8; 32]) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(*private)).to_bytes()
}

/// What both parties share, or `None` where it is zero.
pub fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Secret> {
    let shared = StaticSecret::from(*private).diffie_hellman(&PublicKey::from(*public));
    shared.was_contributory().then(|| Zeroizing::new(shared.to_bytes()))
}
