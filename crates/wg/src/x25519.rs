//! X25519 (RFC 7748), which is most of what a handshake costs: graviola's where the processor has
//! what its assembly needs, at half the time, and else dalek's (docs/decisions/0007). Both leave
//! secrets on the stack, which their callers wipe ([`crate::stack`]).

use zeroize::Zeroizing;

/// The public key of a private one.
pub(crate) fn public_key(private: &[u8; 32]) -> [u8; 32] {
    #[cfg(target_arch = "x86_64")]
    if assembly::is_supported() {
        return assembly::public_key(private);
    }
    portable::public_key(private)
}

/// The result of both keys, or `None` where it is zero, as it is for public keys of low order only.
pub(crate) fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
    #[cfg(target_arch = "x86_64")]
    if assembly::is_supported() {
        return assembly::diffie_hellman(private, public);
    }
    portable::diffie_hellman(private, public)
}

pub(crate) mod portable {
    use x25519_dalek::{PublicKey, StaticSecret};
    use zeroize::Zeroizing;

    pub(crate) fn public_key(private: &[u8; 32]) -> [u8; 32] {
        PublicKey::from(&StaticSecret::from(*private)).to_bytes()
    }

    pub(crate) fn diffie_hellman(
        private: &[u8; 32],
        public: &[u8; 32],
    ) -> Option<Zeroizing<[u8; 32]>> {
        let shared = StaticSecret::from(*private).diffie_hellman(&PublicKey::from(*public));
        shared.was_contributory().then(|| Zeroizing::new(shared.to_bytes()))
    }
}

#[cfg(target_arch = "x86_64")]
mod assembly {
    use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};
    use zeroize::Zeroizing;

    /// All that graviola asks for, whatever is used of it: without, it panics.
    pub fn is_supported() -> bool {
        is_x86_feature_detected!("adx")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("avx")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("pclmulqdq")
    }

    pub fn public_key(private: &[u8; 32]) -> [u8; 32] {
        StaticPrivateKey::from_array(private).public_key().as_bytes()
    }

    pub fn diffie_hellman(private: &[u8; 32], public: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
        let shared =
            StaticPrivateKey::from_array(private).diffie_hellman(&PublicKey::from_array(public));
        shared.ok().map(|shared| Zeroizing::new(shared.0))
    }
}

#[cfg(test)]
mod tests {
    use super::{diffie_hellman, portable, public_key};
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    /// Where the processor has nothing better both are the same. What is hard of the results is in
    /// Wycheproof's vectors, which `crate::key` asks both for.
    #[test]
    fn both_agree_on_any_keys() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        for _ in 0..500 {
            let (mut private, mut public) = ([0; 32], [0; 32]);
            rng.fill_bytes(&mut private);
            rng.fill_bytes(&mut public);
            assert_eq!(public_key(&private), portable::public_key(&private));
            assert_eq!(
                diffie_hellman(&private, &public),
                portable::diffie_hellman(&private, &public)
            );
        }
    }
}
