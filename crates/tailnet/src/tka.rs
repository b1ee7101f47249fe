//! Tailnet lock: node keys are signed with keys that the network trusts, so that a coordinator
//! alone cannot add nodes (tailscale `tka`).
//!
//! ```text
//!   checkpoint ──► update ──► update ──► head       each signed by a key trusted before it
//!                                          `──► trusted keys ──► verify the signature of a node key
//! ```
//!
//! The coordinator stores and distributes the updates, but cannot create them. Each node verifies
//! them. A node with a trusted key creates updates, and signs the keys of other nodes.

mod cbor;
mod node_signature;
mod private_key;
mod rejected_peers;
mod signature_json;
pub mod sync_requests;
mod trust_state;
mod trusted_key;
mod update;
mod update_builder;
mod update_chain;

use std::fmt;

pub use self::{
    node_signature::{Claim, claim},
    private_key::{TkaKey, WrappedAuthKey},
    rejected_peers::rejected_peers,
    signature_json::signature_json,
    trust_state::disablement_hash,
    trusted_key::KeyId,
    update::UpdateHash,
    update_builder::{NewKey, first_checkpoint, read_public, sign},
    update_chain::MAX_BYTES,
};
use self::{trust_state::State, update::Update, update_chain::Chain};
use crate::keys::NodePublic;

/// The authority: the trusted keys that sign node keys.
#[derive(Clone, Debug)]
pub struct Authority {
    chain: Chain,
    /// The active updates, the oldest first; never empty.
    path: Vec<UpdateHash>,
    state: State,
}

/// The reason why a message cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are not one CBOR message.
    NotCbor,
    /// The nesting exceeds the limit.
    TooDeep,
    /// A field is missing, has a wrong type, or is unknown.
    Field,
    /// A key is not valid.
    Key,
    /// A checkpoint is not valid.
    Checkpoint,
    /// A hash is not valid.
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

/// The reason why an update or a signature is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyError {
    /// It cannot be decoded.
    Malformed(DecodeError),
    /// It is not signed.
    Unsigned,
    /// A signature is not valid.
    BadSignature,
    /// Its key is not trusted.
    UntrustedKey,
    /// It adds a key that is already trusted.
    DuplicateKey,
    /// It removes the last trusted key.
    LastKey,
    /// It exceeds the maximum number of trusted keys.
    TooManyKeys,
    /// Its parent is unknown.
    NoParent,
    /// It starts a chain, and is not a checkpoint.
    NoCheckpoint,
    /// It belongs to another chain.
    OtherChain,
    /// The number or size of the updates exceeds the limit.
    TooMany,
    /// It signs the key of another node.
    OtherNode,
    /// It authorizes an auth key, and does not sign a node key.
    Credential,
    /// The node replaced this key.
    Rotated,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unsigned => f.write_str("it is not signed"),
            Self::BadSignature => f.write_str("its signature is wrong"),
            Self::UntrustedKey => f.write_str("its key is not trusted"),
            Self::DuplicateKey => f.write_str("its key is already trusted"),
            Self::LastKey => f.write_str("it removes the last trusted key"),
            Self::TooManyKeys => f.write_str("there are too many trusted keys"),
            Self::NoParent => f.write_str("its parent is unknown"),
            Self::NoCheckpoint => f.write_str("it starts a chain, but is not a checkpoint"),
            Self::OtherChain => f.write_str("it belongs to another chain"),
            Self::TooMany => write!(
                f,
                "the chain exceeds {} updates or {} MiB: turn tailnet lock off and on again to start a \
                 new one",
                update_chain::MAX_UPDATES,
                MAX_BYTES >> 20
            ),
            Self::OtherNode => f.write_str("it is the signature of another node's key"),
            Self::Credential => {
                f.write_str("it is the signature of an auth key, not of a node key")
            }
            Self::Rotated => f.write_str("the node has replaced this key"),
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
    /// Starts with a checkpoint. Its source must be trusted once.
    ///
    /// # Errors
    /// It is not a checkpoint, or not signed by keys that it contains.
    pub fn bootstrap(checkpoint: &[u8]) -> Result<Self, VerifyError> {
        let first = Update::read(checkpoint)?;
        let (chain, state) = Chain::new(first.clone())?;
        first.check(&state)?;
        Ok(Self { path: vec![chain.oldest()], chain, state })
    }

    /// Adds updates, each after its parent. Known updates are ignored.
    ///
    /// # Errors
    /// An update is rejected. The authority stays unchanged.
    pub fn inform<T: AsRef<[u8]>>(&mut self, updates: &[T]) -> Result<(), VerifyError> {
        let mut new = self.clone();
        new.take(updates)?;
        new.chain.compact(&new.path);
        let oldest = new.chain.oldest();
        new.path = new.path.into_iter().skip_while(|hash| *hash != oldest).collect();
        *self = new;
        Ok(())
    }

    /// Adds updates without removing old ones: a coordinator must have all of them for new nodes.
    /// Returns those that were new.
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

    /// Restores the authority from all updates of [`Self::bootstrap`] and
    /// [`Self::inform_uncompacted`].
    ///
    /// # Errors
    /// An update is rejected. Its index, and the reason.
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

    /// Returns the hash of the last active update.
    pub fn head(&self) -> UpdateHash {
        *self.path.last().expect("a path begins with the oldest update")
    }

    /// Returns whether a key is trusted.
    pub fn trusts(&self, key: &KeyId) -> bool {
        self.state.key(key).is_some()
    }

    /// Checks the signature of a node key.
    ///
    /// # Errors
    /// It is not valid.
    pub fn check(&self, node: &NodePublic, signature: &[u8]) -> Result<(), VerifyError> {
        if signature.is_empty() {
            return Err(VerifyError::Unsigned);
        }
        node_signature::check(&self.state, node, signature).map(drop)
    }

    /// Returns whether a secret turns tailnet lock off. Takes 16 MiB of memory and about 50 ms.
    pub fn is_disabled_by(&self, secret: &[u8]) -> bool {
        disablement_hash(secret).is_some_and(|hash| self.is_disabled_by_hash(&hash))
    }

    /// Returns whether the secret with this hash ([`disablement_hash`]) turns tailnet lock off.
    pub fn is_disabled_by_hash(&self, hash: &[u8; 32]) -> bool {
        self.state.is_disabled_by(hash)
    }

    /// Returns the encoded updates, for [`Self::from_stored`].
    pub fn encoded_updates(&self) -> Vec<Vec<u8>> {
        self.chain.all().into_iter().map(Update::text).collect()
    }

    /// Restores the authority from stored updates.
    ///
    /// # Errors
    /// The updates are not from [`Self::encoded_updates`].
    pub fn from_stored<T: AsRef<[u8]>>(texts: &[T]) -> Result<Self, VerifyError> {
        let (first, others) = texts.split_first().ok_or(VerifyError::NoCheckpoint)?;
        // Keys that a later checkpoint does not contain may have signed it. It was verified when it
        // was received.
        let (chain, state) = Chain::new(Update::read(first.as_ref())?)?;
        let mut restored = Self { path: vec![chain.oldest()], chain, state };
        restored.inform(others)?;
        Ok(restored)
    }
}
