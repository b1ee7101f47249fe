//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, both roles (paper 5.4; Noise revision
//! 34 section 5).
//!
//! ```text
//!   initiator                              responder
//!   Initiator::start ---- initiation ----> OpenedInitiation::open_each
//!                                          Claim::prove_each
//!                                          Ephemeral::generate_each
//!   Initiator::open_response <- response -- SealedResponse::seal_each
//!   OpenedResponse::finish
//!            both hold TransportKeys
//! ```
//!
//! A responder handles several handshakes at once, because their Diffie-Hellmans and hashes are
//! cheaper together.
//!
//! The control half handles peers, replay protection and time. It also wipes the stack afterwards,
//! because functions here return secrets by value.

pub mod ik;

use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::{
    PresharedKey, PrivateKey, PublicKey, aead,
    blake2s::{self, Job},
};

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
const TAG: usize = aead::TAG_LEN;

/// A Diffie-Hellman result or a symmetric key.
pub use crate::x25519::Secret;

/// Our own static key pair.
pub struct Identity {
    pub private: PrivateKey,
    pub public: PublicKey,
    /// The state at the start of each handshake with us as responder.
    start: Symmetric,
}

impl Identity {
    pub fn new(private: PrivateKey) -> Self {
        Self::with_prologue(IDENTIFIER, private)
    }

    fn with_prologue(prologue: &[u8], private: PrivateKey) -> Self {
        let public = private.public_key();
        Self { private, public, start: Symmetric::new(CONSTRUCTION, prologue, &public) }
    }
}

/// The keys of a session, one for each direction.
pub struct TransportKeys {
    pub send: Secret,
    pub recv: Secret,
}

/// An initiator between initiation and response.
pub struct Initiator {
    symmetric: Symmetric,
    ephemeral: PrivateKey,
}

/// Both static keys of a handshake, on the initiator's side.
#[derive(Clone, Copy)]
pub struct Statics<'a> {
    pub identity: &'a Identity,
    pub remote: &'a PublicKey,
    /// Their Diffie-Hellman result.
    pub shared: &'a Secret,
}

/// The fields of an initiation except indices, timestamp and MACs.
pub struct InitiationParts {
    pub ephemeral: PublicKey,
    pub static_key: [u8; 32 + TAG],
}

impl Initiator {
    /// Writes an initiation. `payload` is sealed into `sealed`, which must be longer by one tag.
    /// Returns `None` if the remote key is of low order.
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
        let mut symmetric = Symmetric::new(CONSTRUCTION, prologue, remote);
        let public = ephemeral.public_key();
        symmetric.mix_ephemeral(&public);
        let key = symmetric.mix_key(&ephemeral.diffie_hellman(remote)?);
        let mut static_key = [0; 32 + TAG];
        symmetric.encrypt(&key, identity.public.as_bytes(), &mut static_key);
        let key = symmetric.mix_key(shared);
        symmetric.encrypt(&key, payload, sealed);
        Some((Self { symmetric, ephemeral }, InitiationParts { ephemeral: public, static_key }))
    }

    /// Reads a response up to its preshared key. Does not change the state, so that a forged
    /// response does not end the handshake.
    pub fn open_response(
        &self,
        identity: &Identity,
        ephemeral: &PublicKey,
    ) -> Option<OpenedResponse> {
        let mut symmetric = self.symmetric.clone();
        symmetric.mix_ephemeral(ephemeral);
        for private in [&self.ephemeral, &identity.private] {
            symmetric.derive::<1>(private.diffie_hellman(ephemeral)?.as_slice());
        }
        Some(OpenedResponse { symmetric })
    }
}

/// A response that is processed except for its preshared key.
pub struct OpenedResponse {
    symmetric: Symmetric,
}

impl OpenedResponse {
    /// Completes the handshake if the response was made with `psk`. Its decrypted content is
    /// written to `payload`.
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

/// An initiation after decryption of the sender's public key, which is not yet proved.
pub struct OpenedInitiation {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    /// The public key that the sender claims.
    pub remote: PublicKey,
}

impl OpenedInitiation {
    /// Decrypts the senders' static keys. Each initiation is an ephemeral key and a sealed static
    /// key. `None` for a forged initiation, or an ephemeral key of low order.
    pub fn open_each(
        identity: &Identity,
        initiations: &[(PublicKey, &[u8; 32 + TAG])],
    ) -> Vec<Option<Self>> {
        let pairs = initiations.iter().map(|(ephemeral, _)| (&identity.private, ephemeral));
        // A value moved out of a vector would leave a copy in it.
        let shared = PrivateKey::diffie_hellman_each(pairs);
        let mut symmetrics = vec![identity.start.clone(); initiations.len()];
        let ephemerals = initiations.iter().map(|(ephemeral, _)| ephemeral);
        Symmetric::mix_ephemeral_each(&mut symmetrics, ephemerals);
        let nothing = Secret::default();
        let inputs = shared.iter().map(|shared| shared.as_ref().unwrap_or(&nothing));
        let keys = Symmetric::mix_key_each(&mut symmetrics, inputs);
        let mut remotes = vec![[0; 32]; initiations.len()];
        let sealed = initiations.iter().map(|(_, static_key)| &static_key[..]);
        let texts = remotes.iter_mut().map(|remote| &mut remote[..]);
        let authentic = Symmetric::decrypt_each(&mut symmetrics, &keys, sealed, texts);
        let opened = (0..initiations.len()).map(|at| {
            let is_known = shared[at].is_some() && authentic[at];
            let symmetric = is_known.then(|| symmetrics[at].clone())?;
            Some(Self { symmetric, ephemeral: initiations[at].0, remote: remotes[at].into() })
        });
        opened.collect()
    }
}

/// The claim of an initiation that its sender has the private key of its static key.
pub struct Claim<'a> {
    pub opened: &'a OpenedInitiation,
    /// The Diffie-Hellman result of both static keys.
    pub static_static: &'a Secret,
    /// The sealed payload.
    pub sealed: &'a [u8],
}

impl Claim<'_> {
    /// Decrypts the payload, which proves the claim. `None` if it is forged.
    pub fn prove<const P: usize>(self) -> Option<[u8; P]> {
        let [proved] = &Self::prove_each(&[self])[..] else { return None };
        proved.as_ref().map(|(payload, _)| *payload)
    }

    /// Decrypts payloads of `P` bytes, which proves the claims. `None` for a forged one.
    pub fn prove_each<const P: usize>(claims: &[Self]) -> Vec<Option<([u8; P], Responder)>> {
        let mut symmetrics: Vec<_> =
            claims.iter().map(|claim| claim.opened.symmetric.clone()).collect();
        let inputs = claims.iter().map(|claim| claim.static_static);
        let keys = Symmetric::mix_key_each(&mut symmetrics, inputs);
        let mut payloads = vec![[0; P]; claims.len()];
        let sealed = claims.iter().map(|claim| claim.sealed);
        let texts = payloads.iter_mut().map(|payload| &mut payload[..]);
        let authentic = Symmetric::decrypt_each(&mut symmetrics, &keys, sealed, texts);
        let proved = claims.iter().enumerate().map(|(at, claim)| {
            let symmetric = authentic[at].then(|| symmetrics[at].clone())?;
            let OpenedInitiation { ephemeral, remote, .. } = *claim.opened;
            Some((payloads[at], Responder { symmetric, ephemeral, remote }))
        });
        proved.collect()
    }
}

/// A responder between initiation and response.
pub struct Responder {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    remote: PublicKey,
}

/// A responder's ephemeral key.
pub struct Ephemeral {
    pub public: PublicKey,
    /// Diffie-Hellman results with the initiator's ephemeral key and its static key.
    shared: [Secret; 2],
}

impl Ephemeral {
    /// Generates one key for each responder. `None` if a key of the initiator is of low order.
    pub fn generate_each<'a>(
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
        let public = PrivateKey::public_key_each(pairs.iter().map(|(private, _)| private));
        let ephemerals = public.into_iter().zip(shared.chunks_exact(2)).map(|(public, both)| {
            let [Some(ephemeral), Some(remote)] = both else { return None };
            Some(Self { public, shared: [ephemeral.clone(), remote.clone()] })
        });
        ephemerals.collect()
    }
}

/// Inputs of a response.
pub struct ResponseRequest<'a> {
    pub responder: &'a Responder,
    pub ephemeral: &'a Ephemeral,
    pub psk: &'a PresharedKey,
}

/// The encrypted part of a response and the session keys.
pub struct SealedResponse {
    /// The sealed payload.
    pub sealed: Vec<u8>,
    pub keys: TransportKeys,
}

impl SealedResponse {
    /// Answers each request with the same payload.
    pub fn seal_each(questions: &[ResponseRequest<'_>], payload: &[u8]) -> Vec<Self> {
        let mut symmetrics: Vec<_> =
            questions.iter().map(|question| question.responder.symmetric.clone()).collect();
        let ephemerals = questions.iter().map(|question| &question.ephemeral.public);
        Symmetric::mix_ephemeral_each(&mut symmetrics, ephemerals);
        for at in 0..2 {
            let inputs = questions.iter().map(|question| question.ephemeral.shared[at].as_slice());
            Symmetric::derive_each::<1>(&mut symmetrics, inputs);
        }
        let inputs = questions.iter().map(|question| question.psk.as_bytes().as_slice());
        let derived = Symmetric::derive_each::<3>(&mut symmetrics, inputs);
        Symmetric::mix_hash_each(&mut symmetrics, derived.iter().map(|[_, hash, _]| &hash[..]));
        let sealed: Vec<Vec<u8>> = symmetrics
            .iter()
            .zip(&derived)
            .map(|(symmetric, [_, _, key])| {
                let mut sealed = vec![0; payload.len() + TAG];
                symmetric.seal(key, payload, &mut sealed);
                sealed
            })
            .collect();
        let nothing = symmetrics.iter().map(|symmetric| symmetric.job(&[]));
        let keys = blake2s::derive_each(&nothing.collect::<Vec<_>>());
        let answers = sealed.into_iter().zip(&keys).map(|(sealed, [recv, send])| Self {
            sealed,
            keys: TransportKeys { send: send.clone(), recv: recv.clone() },
        });
        answers.collect()
    }
}

/// Noise's SymmetricState: chaining key and transcript hash.
#[derive(Clone)]
struct Symmetric {
    chaining_key: Secret,
    hash: [u8; 32],
}

impl Symmetric {
    fn new(construction: &[u8], prologue: &[u8], responder: &PublicKey) -> Self {
        let construction = blake2s::hash(&[construction]);
        let mut state = Self { chaining_key: Zeroizing::new(construction), hash: construction };
        state.mix_hash(prologue);
        state.mix_hash(responder.as_bytes());
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = blake2s::hash(&[&self.hash, data]);
    }

    /// The token `e`. In a pattern with a preshared key it also mixes the key.
    fn mix_ephemeral(&mut self, public: &PublicKey) {
        self.mix_hash(public.as_bytes());
        self.derive::<1>(public.as_bytes());
    }

    fn mix_key(&mut self, input: &Secret) -> Secret {
        let [_, key] = self.derive(input.as_slice());
        key
    }

    fn mix_key_and_hash(&mut self, psk: &PresharedKey) -> Secret {
        let [_, hash, key] = self.derive(psk.as_bytes());
        self.mix_hash(hash.as_slice());
        key
    }

    /// Derives outputs from the chaining key. The first output replaces it.
    fn derive<const N: usize>(&mut self, input: &[u8]) -> [Secret; N] {
        let derived = blake2s::derive(self.job(input));
        self.chaining_key = derived[0].clone();
        derived
    }

    fn job<'a>(&'a self, input: &'a [u8]) -> Job<'a> {
        Job { key: &self.chaining_key, input }
    }

    fn split(&self) -> [Secret; 2] {
        blake2s::derive(self.job(&[]))
    }

    fn encrypt(&mut self, key: &Secret, plaintext: &[u8], sealed: &mut [u8]) {
        self.seal(key, plaintext, sealed);
        self.mix_hash(sealed);
    }

    fn decrypt(&mut self, key: &Secret, sealed: &[u8], plaintext: &mut [u8]) -> Option<()> {
        self.open(key, sealed, plaintext)?;
        self.mix_hash(sealed);
        Some(())
    }

    /// Each key seals one message, so the nonce is always zero.
    fn seal(&self, key: &Secret, plaintext: &[u8], sealed: &mut [u8]) {
        let (text, tag) = sealed.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let computed = cipher(key)
            .encrypt_inout_detached(&[0; 12].into(), &self.hash, text.into())
            .expect("a handshake field is far below the limit of 256 GiB");
        tag.copy_from_slice(&computed);
    }

    fn open(&self, key: &Secret, sealed: &[u8], plaintext: &mut [u8]) -> Option<()> {
        let (text, tag) = sealed.split_last_chunk::<TAG>()?;
        plaintext.copy_from_slice(text);
        cipher(key)
            .decrypt_inout_detached(&[0; 12].into(), &self.hash, plaintext.into(), tag.into())
            .ok()
    }
}

/// Operations on several handshakes at once.
impl Symmetric {
    fn mix_hash_each<'a>(states: &mut [Self], data: impl Iterator<Item = &'a [u8]>) {
        let messages = states.iter().zip(data).map(|(state, data)| [&state.hash[..], data]);
        let hashes = blake2s::hash_each(&messages.collect::<Vec<_>>());
        states.iter_mut().zip(hashes).for_each(|(state, hash)| state.hash = hash);
    }

    fn mix_ephemeral_each<'a>(
        states: &mut [Self],
        publics: impl Iterator<Item = &'a PublicKey> + Clone,
    ) {
        let publics = publics.map(|public| &public.as_bytes()[..]);
        Self::mix_hash_each(states, publics.clone());
        Self::derive_each::<1>(states, publics);
    }

    /// Returns two outputs for each state. The second one is the key.
    fn mix_key_each<'a>(
        states: &mut [Self],
        inputs: impl Iterator<Item = &'a Secret>,
    ) -> Vec<[Secret; 2]> {
        Self::derive_each(states, inputs.map(|input| input.as_slice()))
    }

    fn derive_each<'a, const N: usize>(
        states: &mut [Self],
        inputs: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<[Secret; N]> {
        let jobs = states.iter().zip(inputs).map(|(state, input)| state.job(input));
        let derived = blake2s::derive_each::<N>(&jobs.collect::<Vec<_>>());
        for (state, derived) in states.iter_mut().zip(&derived) {
            state.chaining_key = derived[0].clone();
        }
        derived
    }

    /// Decrypts each text. Returns whether it is authentic.
    fn decrypt_each<'a>(
        states: &mut [Self],
        keys: &[[Secret; 2]],
        sealed: impl Iterator<Item = &'a [u8]> + Clone,
        texts: impl Iterator<Item = &'a mut [u8]>,
    ) -> Vec<bool> {
        let each = states.iter().zip(keys).zip(sealed.clone()).zip(texts);
        let authentic =
            each.map(|(((state, [_, key]), sealed), text)| state.open(key, sealed, text).is_some());
        let authentic = authentic.collect();
        Self::mix_hash_each(states, sealed);
        authentic
    }
}

fn cipher(key: &Secret) -> ChaCha20Poly1305 {
    ChaCha20Poly1305::new((&**key).into())
}

#[cfg(test)]
mod tests;
