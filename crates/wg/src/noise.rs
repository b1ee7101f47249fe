//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, both roles (paper 5.4; Noise revision
//! 34 section 5).
//!
//! ```text
//!   initiator                              responder
//!   Initiator::start ---- initiation ----> Opened::of, Opened::timestamp
//!   Initiator::finish <--- response ------ Responder::answer
//!            both hold TransportKeys
//! ```
//!
//! Nothing here knows of peers, replay or time: the control half decides. It also wipes the stack
//! afterwards: secrets are returned by value here.

use blake2::{Blake2s256, Digest};
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use hmac::{Mac, SimpleHmac};
use zeroize::Zeroizing;

use crate::{PresharedKey, PrivateKey, PublicKey};

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
const TAG: usize = aead::TAG_LEN;

/// A Diffie-Hellman result or a symmetric key.
pub(crate) type Secret = Zeroizing<[u8; 32]>;

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

    /// Reads a response. It takes nothing from the state, so that a forged
    /// response does not end the handshake. `payload` is what is sealed in it.
    pub fn finish(
        &self,
        identity: &Identity,
        psk: &PresharedKey,
        ephemeral: &PublicKey,
        sealed: &[u8],
        payload: &mut [u8],
    ) -> Option<TransportKeys> {
        let mut symmetric = self.symmetric.clone();
        symmetric.mix_ephemeral(ephemeral);
        symmetric.mix_key(&self.ephemeral.diffie_hellman(ephemeral)?);
        symmetric.mix_key(&identity.private.diffie_hellman(ephemeral)?);
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
    /// Opens the sender's static key. `None` where it is forged, or the
    /// ephemeral key is of low order.
    pub fn of(
        identity: &Identity,
        ephemeral: &PublicKey,
        static_key: &[u8; 32 + TAG],
    ) -> Option<Self> {
        Self::with(IDENTIFIER, identity, ephemeral, static_key)
    }

    fn with(
        prologue: &[u8],
        identity: &Identity,
        ephemeral: &PublicKey,
        static_key: &[u8; 32 + TAG],
    ) -> Option<Self> {
        let mut symmetric = Symmetric::new(prologue, &identity.public);
        symmetric.mix_ephemeral(ephemeral);
        let key = symmetric.mix_key(&identity.private.diffie_hellman(ephemeral)?);
        let mut remote = [0; 32];
        symmetric.decrypt(&key, static_key, &mut remote)?;
        Some(Self { symmetric, ephemeral: *ephemeral, remote: remote.into() })
    }

    /// Opens the payload, which proves that the sender has the private key to
    /// its public one.
    pub fn timestamp(
        mut self,
        static_static: &Secret,
        sealed: &[u8],
        payload: &mut [u8],
    ) -> Option<Responder> {
        let key = self.symmetric.mix_key(static_static);
        self.symmetric.decrypt(&key, sealed, payload)?;
        Some(Responder {
            symmetric: self.symmetric,
            ephemeral: self.ephemeral,
            remote: self.remote,
        })
    }
}

/// The responder between initiation and response.
pub(crate) struct Responder {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    remote: PublicKey,
}

impl Responder {
    /// Seals `payload` into `sealed`, which is a tag longer, and ends the
    /// handshake; beside the keys, the ephemeral's public one for the message.
    /// `None` where a key of the initiator is of low order.
    pub fn answer(
        mut self,
        psk: &PresharedKey,
        ephemeral: &PrivateKey,
        payload: &[u8],
        sealed: &mut [u8],
    ) -> Option<(TransportKeys, PublicKey)> {
        // It costs a third of a Diffie-Hellman, so it is computed once.
        let public = ephemeral.public_key();
        self.symmetric.mix_ephemeral(&public);
        self.symmetric.mix_key(&ephemeral.diffie_hellman(&self.ephemeral)?);
        self.symmetric.mix_key(&ephemeral.diffie_hellman(&self.remote)?);
        let key = self.symmetric.mix_key_and_hash(psk);
        self.symmetric.encrypt(&key, payload, sealed);
        let [recv, send] = self.symmetric.split();
        Some((TransportKeys { send, recv }, public))
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
fn derive<const N: usize>(key: &Secret, input: &[u8]) -> [Secret; N] {
    let secret = hmac(key.as_ref(), &[input]);
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
