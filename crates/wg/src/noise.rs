//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, both roles (paper 5.4; Noise revision
//! 34 section 5).
//!
//! ```text
//!   initiator                              responder
//!   Initiator::start ---- initiation ----> Opened::of_each, Opened::timestamp
//!                                          Ephemeral::of_each
//!   Initiator::answered <-- response ----- Responder::answer
//!   Answered::finish
//!            both hold TransportKeys
//! ```
//!
//! A responder has the Diffie-Hellmans of several handshakes computed at once.
//!
//! Nothing here knows of peers, replay or time: the control half decides. It also wipes the stack
//! afterwards: secrets are returned by value here.

use blake2::{Blake2s256, Digest};
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use hmac::{Mac, SimpleHmac};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::{PresharedKey, PrivateKey, PublicKey};

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
const TAG: usize = aead::TAG_LEN;

/// A Diffie-Hellman result or a symmetric key.
pub(crate) use x25519::Secret;

/// Our own static key pair.
#[derive(Debug)]
pub(crate) struct Identity {
    pub private: PrivateKey,
    pub public: PublicKey,
}

impl Identity {
    pub fn new(private: PrivateKey) -> Self {
        let public = private.public_key();
        Self { private, public }
    }
}

/// The keys of a session, one for each direction.
pub(crate) struct TransportKeys {
    pub send: Secret,
    pub recv: Secret,
}

/// The initiator between initiation and response.
pub(crate) struct Initiator {
    symmetric: Symmetric,
    ephemeral: PrivateKey,
}

/// Both static keys of a handshake, as its initiator has them.
#[derive(Clone, Copy)]
pub(crate) struct Statics<'a> {
    pub identity: &'a Identity,
    pub remote: &'a PublicKey,
    /// Their Diffie-Hellman result.
    pub shared: &'a Secret,
}

/// What an initiation holds beside indices and MACs.
pub(crate) struct InitiationParts {
    pub ephemeral: PublicKey,
    pub static_key: [u8; 32 + TAG],
}

impl Initiator {
    /// Writes an initiation; `payload` is sealed into `sealed`, which is a tag longer.
    /// `None` where the remote key is of low order.
    pub fn start(
        statics: Statics<'_>,
        ephemeral: PrivateKey,
        payload: &[u8],
        sealed: &mut [u8],
    ) -> Option<(Self, InitiationParts)> {
        Self::start_with(IDENTIFIER, statics, ephemeral, payload, sealed)
    }

    fn start_with(
        prologue: &[u8],
        Statics { identity, remote, shared }: Statics<'_>,
        ephemeral: PrivateKey,
        payload: &[u8],
        sealed: &mut [u8],
    ) -> Option<(Self, InitiationParts)> {
        let mut symmetric = Symmetric::new(prologue, remote);
        let public = ephemeral.public_key();
        symmetric.mix_ephemeral(&public);
        let key = symmetric.mix_key(&ephemeral.diffie_hellman(remote)?);
        let mut static_key = [0; 32 + TAG];
        symmetric.encrypt(&key, identity.public.as_bytes(), &mut static_key);
        let key = symmetric.mix_key(shared);
        symmetric.encrypt(&key, payload, sealed);
        Some((Self { symmetric, ephemeral }, InitiationParts { ephemeral: public, static_key }))
    }

    /// Reads a response up to its preshared key. It takes nothing from the state, so that a
    /// forged response does not end the handshake.
    pub fn answered(&self, identity: &Identity, ephemeral: &PublicKey) -> Option<Answered> {
        let mut symmetric = self.symmetric.clone();
        symmetric.mix_ephemeral(ephemeral);
        symmetric.mix_key(&self.ephemeral.diffie_hellman(ephemeral)?);
        symmetric.mix_key(&identity.private.diffie_hellman(ephemeral)?);
        Some(Answered { symmetric })
    }
}

/// A response of which only the preshared key is open.
pub(crate) struct Answered {
    symmetric: Symmetric,
}

impl Answered {
    /// Ends the handshake, where the response was made by `psk`. `payload` is what is sealed in
    /// it.
    pub fn finish(
        &self,
        psk: &PresharedKey,
        sealed: &[u8],
        payload: &mut [u8],
    ) -> Option<TransportKeys> {
        let mut symmetric = self.symmetric.clone();
        let key = symmetric.mix_key_and_hash(psk);
        symmetric.decrypt(&key, sealed, payload)?;
        let [send, recv] = symmetric.split();
        Some(TransportKeys { send, recv })
    }
}

/// An initiation of which the sender's public key is known, and not yet proved.
pub(crate) struct Opened {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    /// Who claims to have sent it.
    pub remote: PublicKey,
}

impl Opened {
    /// Opens the senders' static keys, each by the ephemeral key beside it. `None` where one is
    /// forged, or the ephemeral key is of low order.
    pub fn of_each(
        identity: &Identity,
        initiations: &[(PublicKey, &[u8; 32 + TAG])],
    ) -> Vec<Option<Self>> {
        Self::each_with(IDENTIFIER, identity, initiations)
    }

    fn each_with(
        prologue: &[u8],
        identity: &Identity,
        initiations: &[(PublicKey, &[u8; 32 + TAG])],
    ) -> Vec<Option<Self>> {
        let pairs = initiations.iter().map(|(ephemeral, _)| (&identity.private, ephemeral));
        // What is moved out of a list leaves a copy in it.
        let shared = PrivateKey::diffie_hellman_each(pairs);
        let opened = shared.iter().zip(initiations).map(|(shared, (ephemeral, static_key))| {
            let mut symmetric = Symmetric::new(prologue, &identity.public);
            symmetric.mix_ephemeral(ephemeral);
            let key = symmetric.mix_key(shared.as_ref()?);
            let mut remote = [0; 32];
            symmetric.decrypt(&key, *static_key, &mut remote)?;
            Some(Self { symmetric, ephemeral: *ephemeral, remote: remote.into() })
        });
        opened.collect()
    }

    /// Opens the payload, which proves that the sender has the private key to
    /// its public one.
    pub fn timestamp(
        &self,
        static_static: &Secret,
        sealed: &[u8],
        payload: &mut [u8],
    ) -> Option<Responder> {
        let mut symmetric = self.symmetric.clone();
        let key = symmetric.mix_key(static_static);
        symmetric.decrypt(&key, sealed, payload)?;
        Some(Responder { symmetric, ephemeral: self.ephemeral, remote: self.remote })
    }
}

/// The responder between initiation and response.
pub(crate) struct Responder {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    remote: PublicKey,
}

/// A responder's ephemeral key.
pub(crate) struct Ephemeral {
    pub public: PublicKey,
    /// With the initiator's ephemeral key and its static one.
    shared: [Secret; 2],
}

impl Ephemeral {
    /// One for each of these. `None` where a key of the initiator is of low order.
    pub fn of_each<'a>(
        responders: impl Iterator<Item = &'a Responder>,
        rng: &mut impl CryptoRng,
    ) -> Vec<Option<Self>> {
        let pairs = responders.map(|responder| (PrivateKey::generate(rng), responder));
        Self::with(&pairs.collect::<Vec<_>>())
    }

    fn with(pairs: &[(PrivateKey, &Responder)]) -> Vec<Option<Self>> {
        let jobs = pairs.iter().flat_map(|(private, responder)| {
            [(private, &responder.ephemeral), (private, &responder.remote)]
        });
        let shared = PrivateKey::diffie_hellman_each(jobs);
        let ephemerals = pairs.iter().zip(shared.chunks_exact(2)).map(|((private, _), both)| {
            let [Some(ephemeral), Some(remote)] = both else { return None };
            let shared = [ephemeral.clone(), remote.clone()];
            Some(Self { public: private.public_key(), shared })
        });
        ephemerals.collect()
    }
}

impl Responder {
    /// Seals `payload` into `sealed`, which is a tag longer, and ends the handshake.
    pub fn answer(
        &self,
        psk: &PresharedKey,
        ephemeral: &Ephemeral,
        payload: &[u8],
        sealed: &mut [u8],
    ) -> TransportKeys {
        let mut symmetric = self.symmetric.clone();
        symmetric.mix_ephemeral(&ephemeral.public);
        for shared in &ephemeral.shared {
            symmetric.mix_key(shared);
        }
        let key = symmetric.mix_key_and_hash(psk);
        symmetric.encrypt(&key, payload, sealed);
        let [recv, send] = symmetric.split();
        TransportKeys { send, recv }
    }
}

/// Noise's SymmetricState: chaining key and transcript hash.
#[derive(Clone)]
struct Symmetric {
    chaining_key: Secret,
    hash: [u8; 32],
}

impl Symmetric {
    fn new(prologue: &[u8], responder: &PublicKey) -> Self {
        let construction: [u8; 32] = Blake2s256::digest(CONSTRUCTION).into();
        let mut state = Self { chaining_key: Zeroizing::new(construction), hash: construction };
        state.mix_hash(prologue);
        state.mix_hash(responder.as_bytes());
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Blake2s256::new().chain_update(self.hash).chain_update(data).finalize().into();
    }

    /// The token `e`, which in a pattern with a preshared key mixes the key too.
    fn mix_ephemeral(&mut self, public: &PublicKey) {
        self.mix_hash(public.as_bytes());
        let [chaining_key] = derive(&self.chaining_key, public.as_bytes());
        self.chaining_key = chaining_key;
    }

    fn mix_key(&mut self, input: &Secret) -> Secret {
        let [chaining_key, key] = derive(&self.chaining_key, input.as_ref());
        self.chaining_key = chaining_key;
        key
    }

    fn mix_key_and_hash(&mut self, psk: &PresharedKey) -> Secret {
        let [chaining_key, hash, key] = derive(&self.chaining_key, psk.as_bytes());
        self.chaining_key = chaining_key;
        self.mix_hash(hash.as_ref());
        key
    }

    fn split(&self) -> [Secret; 2] {
        derive(&self.chaining_key, &[])
    }

    /// Every key seals once, so the nonce is always zero.
    fn encrypt(&mut self, key: &Secret, plaintext: &[u8], sealed: &mut [u8]) {
        let (text, tag) = sealed.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let computed = cipher(key)
            .encrypt_inout_detached(&[0; 12].into(), &self.hash, text.into())
            .expect("a handshake field is far below the limit of 256 GiB");
        tag.copy_from_slice(&computed);
        self.mix_hash(sealed);
    }

    fn decrypt(&mut self, key: &Secret, sealed: &[u8], plaintext: &mut [u8]) -> Option<()> {
        let (text, tag) = sealed.split_last_chunk::<TAG>()?;
        plaintext.copy_from_slice(text);
        cipher(key)
            .decrypt_inout_detached(&[0; 12].into(), &self.hash, plaintext.into(), tag.into())
            .ok()?;
        self.mix_hash(sealed);
        Some(())
    }
}

fn cipher(key: &Secret) -> ChaCha20Poly1305 {
    ChaCha20Poly1305::new((&**key).into())
}

/// HKDF with HMAC-BLAKE2s: `N` outputs (paper 5.4, `Kdf_n`).
pub(crate) fn derive<const N: usize>(key: &[u8; 32], input: &[u8]) -> [Secret; N] {
    let secret = hmac(key, &[input]);
    let mut previous: Secret = Zeroizing::new([0; 32]);
    std::array::from_fn(|at| {
        let counter = [at as u8 + 1];
        let parts: &[&[u8]] = if at == 0 { &[&counter] } else { &[previous.as_ref(), &counter] };
        let output = hmac(secret.as_ref(), parts);
        previous = output.clone();
        output
    })
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Secret {
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key)
        .expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests;
