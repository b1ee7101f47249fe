//! ML-KEM-768 (FIPS 203). It leaves secrets on the stack, which callers must wipe
//! ([`crate::stack`]).

use ml_kem::{
    DecapsulationKey, EncapsulationKey, MlKem768,
    kem::{Decapsulate, KeyExport},
};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

/// Bytes of a public key.
pub(crate) const KEY_LEN: usize = 1184;
/// Bytes of a ciphertext.
pub(crate) const CIPHERTEXT_LEN: usize = 1088;

/// A shared secret, boxed so that a move leaves no copy.
pub(crate) type Shared = Box<Zeroizing<[u8; 32]>>;

/// A private key in the form of its seed, boxed.
pub(crate) struct Seed(Box<Zeroizing<[u8; 64]>>);

impl Seed {
    pub(crate) fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut seed = Box::new(Zeroizing::new([0; 64]));
        rng.fill_bytes(seed.as_mut_slice());
        Self(seed)
    }

    /// The public key.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.private().encapsulation_key().to_bytes().to_vec()
    }

    /// Returns the secret in a ciphertext. A ciphertext for another key gives another secret, with
    /// which every handshake fails.
    pub(crate) fn open(&self, ciphertext: &[u8]) -> Option<Shared> {
        let ciphertext = ciphertext.try_into().ok()?;
        let secret = Zeroizing::new(self.private().decapsulate(&ciphertext));
        Some(boxed(secret.as_slice()))
    }

    fn private(&self) -> DecapsulationKey<MlKem768> {
        let seed = Zeroizing::new(ml_kem::Seed::from(**self.0));
        DecapsulationKey::from_seed(*seed)
    }
}

/// Returns a ciphertext for the owner of a public key, and the secret in it. `None` if `key` is
/// invalid.
pub(crate) fn seal(key: &[u8], rng: &mut impl CryptoRng) -> Option<(Vec<u8>, Shared)> {
    let key = EncapsulationKey::<MlKem768>::new(key.try_into().ok()?).ok()?;
    let mut random = Zeroizing::new(ml_kem::B32::default());
    rng.fill_bytes(random.as_mut_slice());
    let (ciphertext, secret) = key.encapsulate_deterministic(&random);
    let secret = Zeroizing::new(secret);
    Some((ciphertext.to_vec(), boxed(secret.as_slice())))
}

fn boxed(secret: &[u8]) -> Shared {
    let mut copy = Box::new(Zeroizing::new([0; 32]));
    copy.copy_from_slice(secret);
    copy
}
