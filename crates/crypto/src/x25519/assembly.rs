//! graviola's assembly of s2n-bignum, for one operation at a time.

use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};
use zeroize::Zeroizing;

use crate::x25519::Secret;

/// Whether the processor has all features that graviola requires. Without any of them it panics,
/// even if the called code does not use the feature.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("pclmulqdq")
}

pub(super) fn public_key(private: &[u8; 32]) -> [u8; 32] {
    StaticPrivateKey::from_array(private).public_key().as_bytes()
}

pub(super) fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Secret> {
    let shared =
        StaticPrivateKey::from_array(private).diffie_hellman(&PublicKey::from_array(public));
    shared.ok().map(|shared| Zeroizing::new(shared.0))
}
