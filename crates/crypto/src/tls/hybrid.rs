//! X25519MLKEM768. ML-KEM's part comes first, in each share and in the secret.
//!
//! ```text
//!   client                                        server
//!   start      -- ML-KEM key, X25519 key ------>  start_and_complete
//!   complete   <- ML-KEM ciphertext, X25519 key
//! ```
//!
//! A server that supports only X25519 uses that part of the client's share, so no second round is
//! needed.

use ml_kem::{
    DecapsulationKey, EncapsulationKey, MlKem768,
    kem::{Decapsulate, KeyExport},
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::{
    Error, NamedGroup, PeerMisbehaved, ProtocolVersion,
    crypto::{
        ActiveKeyExchange, CompletedKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup,
        ring::kx_group::X25519,
    },
};
use zeroize::Zeroizing;

const KEY_LEN: usize = 1184;
const CIPHERTEXT_LEN: usize = 1088;
const X25519_LEN: usize = 32;

const INVALID: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// The group.
#[derive(Debug)]
pub(super) struct X25519MlKem768;

impl SupportedKxGroup for X25519MlKem768 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let classical = X25519.start()?;
        let seed = Zeroizing::new(ml_kem::Seed::from(*random::<64>()?));
        let private = Box::new(DecapsulationKey::<MlKem768>::from_seed(*seed));
        let key = private.encapsulation_key().to_bytes();
        let share = [key.as_slice(), classical.pub_key()].concat();
        Ok(Box::new(ClientExchange { classical, private, share }))
    }

    fn start_and_complete(&self, share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, classical) = split(share, KEY_LEN)?;
        let key = key.try_into().map_err(|_| INVALID)?;
        let key = EncapsulationKey::<MlKem768>::new(key).map_err(|_| INVALID)?;
        let classical = X25519.start_and_complete(classical)?;
        let entropy = Zeroizing::new(ml_kem::B32::from(*random::<32>()?));
        let (ciphertext, secret) = key.encapsulate_deterministic(&entropy);
        let secret = Zeroizing::new(secret);
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [ciphertext.as_slice(), &classical.pub_key].concat(),
            secret: combine(secret.as_slice(), &classical.secret),
        })
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// A client's state until it receives the server's share.
struct ClientExchange {
    classical: Box<dyn ActiveKeyExchange>,
    private: Box<DecapsulationKey<MlKem768>>,
    share: Vec<u8>,
}

impl ActiveKeyExchange for ClientExchange {
    fn complete(self: Box<Self>, share: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, classical) = split(share, CIPHERTEXT_LEN)?;
        let ciphertext = ciphertext.try_into().map_err(|_| INVALID)?;
        let classical = self.classical.complete(classical)?;
        let secret = Zeroizing::new(self.private.decapsulate(&ciphertext));
        Ok(combine(secret.as_slice(), &classical))
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(self: Box<Self>, share: &[u8]) -> Result<SharedSecret, Error> {
        self.classical.complete(share)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

fn split(share: &[u8], first: usize) -> Result<(&[u8], &[u8]), Error> {
    match share.split_at_checked(first) {
        Some((first, second)) if second.len() == X25519_LEN => Ok((first, second)),
        _ => Err(INVALID),
    }
}

fn combine(post_quantum: &[u8], classical: &SharedSecret) -> SharedSecret {
    // Wiped with the secret that it becomes.
    [post_quantum, classical.secret_bytes()].concat().into()
}

fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, Error> {
    let mut bytes = Zeroizing::new([0; N]);
    SystemRandom::new().fill(bytes.as_mut_slice()).map_err(|_| GetRandomFailed)?;
    Ok(bytes)
}
