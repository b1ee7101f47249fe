//! Tailnet lock: which node keys are signed by keys that the network trusts, so that a coordinator
//! alone can let nobody in (tailscale `tka`).
//!
//! ```text
//!   checkpoint ──► update ──► update ──► head        each signed by keys trusted before it
//!                                          `──► trusted keys ──► a node key's signature?
//! ```
//!
//! The coordinator keeps and passes on the updates; it cannot make them. Each node verifies them. A
//! node whose key is trusted makes them too, and signs the keys of other nodes.

mod builder;
mod cbor;
mod chain;
pub mod command;
pub mod follow;
mod json;
mod key;
mod peers;
mod private_key;
mod signature;
mod state;
pub mod sync;
mod update;

use std::fmt;

pub use self::{
    builder::{NewKey, first_checkpoint, read_public, sign},
    chain::MOST_BYTES,
    json::signature_json,
    key::KeyId,
    peers::rejected_peers,
    private_key::{TkaKey, WrappedAuthKey},
    signature::{Claim, claim},
    state::disablement_hash,
    update::UpdateHash,
};
use self::{chain::Chain, state::State, update::Update};
use crate::keys::NodePublic;

/// Who is trusted to sign node keys.
#[derive(Clone, Debug)]
pub struct Authority {
    chain: Chain,
    /// The updates that count, the oldest first; not empty.
    path: Vec<UpdateHash>,
    state: State,
}

/// A text that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// No CBOR, or more than one message of it.
    NotCbor,
    /// Messages in messages beyond what may be.
    TooDeep,
    /// A field is missing, of a wrong type, or not known.
    Field,
    /// A key that may not be.
    Key,
    /// A checkpoint that may not be.
    Checkpoint,
    /// Text of a hash.
    Hash,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCbor => "it is not CBOR",
            Self::TooDeep => "it is nested too deeply",
            Self::Field => "a field is missing, wrong or unknown",
            Self::Key => "a key is not valid",
            Self::Checkpoint => "a checkpoint is not valid",
            Self::Hash => "a hash is not valid",
        })
    }
}

impl std::error::Error for DecodeError {}

/// Why something does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyError {
    /// It cannot be read.
    Malformed(DecodeError),
    /// Nobody signed it.
    Unsigned,
    /// A signature is wrong.
    BadSignature,
    /// It names a key that is not trusted.
    NoSuchKey,
    /// It adds a key that is trusted already.
    KeyIsThere,
    /// It removes the last trusted key.
    LastKey,
    /// It adds a key beyond what may be.
    TooManyKeys,
    /// It follows none of the updates that are known.
    NoParent,
    /// It begins a chain, and is no checkpoint.
    NoCheckpoint,
    /// It is of another chain.
    OtherChain,
    /// There are too many updates, or too many bytes of them.
    TooMany,
    /// It is a signature of another node's key.
    OtherNode,
    /// It is a signature that lets a key sign, and no node.
    Credential,
    /// The node has another key by now.
    Rotated,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unsigned => f.write_str("it is not signed"),
            Self::BadSignature => f.write_str("its signature is wrong"),
            Self::NoSuchKey => f.write_str("its key is not trusted"),
            Self::KeyIsThere => f.write_str("its key is trusted already"),
            Self::LastKey => f.write_str("it removes the last trusted key"),
            Self::TooManyKeys => f.write_str("there are too many trusted keys"),
            Self::NoParent => f.write_str("it follows no known update"),
            Self::NoCheckpoint => f.write_str("it begins a chain, and is no checkpoint"),
            Self::OtherChain => f.write_str("it is of another chain"),
            Self::TooMany => write!(
                f,
                "the chain is too long, with at most {} updates and {} MiB: turn tailnet lock off and on \
                 again, which begins another",
                chain::MOST,
                MOST_BYTES >> 20
            ),
            Self::OtherNode => f.write_str("it is the signature of another node's key"),
            Self::Credential => {
                f.write_str("it is the signature of an auth key, not of a node key")
            }
            Self::Rotated => f.write_str("the node has another key by now"),
        }
    }
}

impl std::error::Error for VerifyError {}

impl From<DecodeError> for VerifyError {
    fn from(malformed: DecodeError) -> Self {
        Self::Malformed(malformed)
    }
}

impl Authority {
    /// Begins with a checkpoint. Whoever gave it is believed in this, once.
    ///
    /// # Errors
    /// It is no checkpoint, or not signed by keys of its own.
    pub fn bootstrap(checkpoint: &[u8]) -> Result<Self, VerifyError> {
        let first = Update::read(checkpoint)?;
        let (chain, state) = Chain::new(first.clone())?;
        first.check(&state)?;
        Ok(Self { path: vec![chain.oldest()], chain, state })
    }

    /// Takes updates, each behind the one that it follows; known ones are passed over.
    ///
    /// # Errors
    /// One of them does not count: nothing has changed then.
    pub fn inform<T: AsRef<[u8]>>(&mut self, updates: &[T]) -> Result<(), VerifyError> {
        let mut new = self.clone();
        new.take(updates)?;
        new.chain.compact(&new.path);
        let oldest = new.chain.oldest();
        new.path = new.path.into_iter().skip_while(|hash| *hash != oldest).collect();
        *self = new;
        Ok(())
    }

    /// The same, and gives none up however many there are: a coordinator has them for nodes that
    /// know none yet. Returns those that were new.
    ///
    /// # Errors
    /// As [`Self::inform`].
    pub fn inform_uncompacted<T: AsRef<[u8]>>(
        &mut self,
        updates: &[T],
    ) -> Result<Vec<Vec<u8>>, VerifyError> {
        let mut all = self.clone();
        let taken = all.take(updates)?;
        *self = all;
        Ok(taken)
    }

    /// What [`Self::bootstrap`] and [`Self::inform_uncompacted`] took, as it was kept.
    ///
    /// # Errors
    /// One of the texts does not count: its place, and why.
    pub fn from_updates<T: AsRef<[u8]>>(texts: &[T]) -> Result<Self, (usize, VerifyError)> {
        let (first, others) = texts.split_first().ok_or((0, VerifyError::NoCheckpoint))?;
        let mut all = Self::bootstrap(first.as_ref()).map_err(|why| (0, why))?;
        for (before, text) in others.iter().enumerate() {
            all.take(std::slice::from_ref(text)).map_err(|why| (before + 1, why))?;
        }
        Ok(all)
    }

    fn take<T: AsRef<[u8]>>(&mut self, updates: &[T]) -> Result<Vec<Vec<u8>>, VerifyError> {
        let mut taken = Vec::new();
        for text in updates {
            let update = Update::read(text.as_ref())?;
            let hash = update.hash();
            if self.chain.has(&hash) {
                continue;
            }
            let parent = update.parent.ok_or(VerifyError::NoParent)?;
            let is_next = parent == self.head();
            let mut state =
                if is_next { self.state.clone() } else { self.chain.state_at(&parent)? };
            update.check(&state)?;
            state.apply(&update)?;
            taken.push(update.text());
            self.chain.insert(hash, update)?;
            if is_next {
                self.path.push(hash);
                self.state = state;
            } else {
                (self.path, self.state) = self.chain.head()?;
            }
        }
        Ok(taken)
    }

    /// The last update that counts.
    pub fn head(&self) -> UpdateHash {
        *self.path.last().expect("a path begins with the oldest update")
    }

    /// Whether a key may sign.
    pub fn trusts(&self, key: &KeyId) -> bool {
        self.state.key(key).is_some()
    }

    /// Whether a node key is signed.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, node: &NodePublic, signature: &[u8]) -> Result<(), VerifyError> {
        if signature.is_empty() {
            return Err(VerifyError::Unsigned);
        }
        signature::check(&self.state, node, signature).map(drop)
    }

    /// Whether a secret turns tailnet lock off. Takes 16 MiB and about 50 ms.
    pub fn is_disabled_by(&self, secret: &[u8]) -> bool {
        disablement_hash(secret).is_some_and(|hash| self.is_disabled_by_hash(&hash))
    }

    /// The same, of the secret with this hash ([`disablement_hash`]).
    pub fn is_disabled_by_hash(&self, hash: &[u8; 32]) -> bool {
        self.state.is_disabled_by(hash)
    }

    /// Its updates as texts, to be kept: the first is for [`Self::from_stored`], and the others follow.
    pub fn encoded_updates(&self) -> Vec<Vec<u8>> {
        self.chain.all().into_iter().map(Update::text).collect()
    }

    /// What was kept.
    ///
    /// # Errors
    /// It was not kept by [`Self::encoded_updates`].
    pub fn from_stored<T: AsRef<[u8]>>(texts: &[T]) -> Result<Self, VerifyError> {
        let (first, others) = texts.split_first().ok_or(VerifyError::NoCheckpoint)?;
        // A checkpoint further on may be signed by keys that it does not name: it was verified when
        // it came.
        let (chain, state) = Chain::new(Update::read(first.as_ref())?)?;
        let mut restored = Self { path: vec![chain.oldest()], chain, state };
        restored.inform(others)?;
        Ok(restored)
    }
}
