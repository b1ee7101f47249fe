//! Creation of checkpoints, updates and signatures with a trusted key (`tka/builder.go`,
//! `ipn/ipnlocal/tailnet-lock.go`).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Authority, DecodeError, UpdateHash, VerifyError,
    cbor::Texts,
    node_signature::NodeSignature,
    private_key::{PUBLIC, SHOWN, TkaKey},
    sync_requests::base64,
    trust_state::{MAX_KEYS, State},
    trusted_key::{ED25519, Key, KeyId},
    update::{Kind, Update},
};
use crate::keys::NodePublic;

/// The maximum number of updates after a checkpoint before the next one (`tka/builder.go`).
const CHECKPOINT_EVERY: usize = 50;

/// A key to add or remove, in Tailscale's JSON (`tka.Key`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NewKey {
    kind: u8,
    #[serde(default)]
    votes: u64,
    #[serde(deserialize_with = "base64")]
    public: Vec<u8>,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
}

impl NewKey {
    /// Creates a key without metadata.
    pub fn new(id: KeyId, votes: u64) -> Self {
        Self { kind: ED25519, votes, public: id.to_vec(), meta: None }
    }

    /// Returns the ID.
    ///
    /// # Errors
    /// It is not an Ed25519 key.
    pub fn id(&self) -> Result<KeyId, DecodeError> {
        let id = self.public.as_slice().try_into().map_err(|_| DecodeError::Key)?;
        if self.kind == ED25519 { Ok(id) } else { Err(DecodeError::Key) }
    }

    fn key(&self) -> Result<Key, DecodeError> {
        let notes = self.meta.clone().and_then(Texts::some);
        let key = Key { id: self.id()?, votes: self.votes, notes };
        if key.is_valid() { Ok(key) } else { Err(DecodeError::Key) }
    }
}

/// Reads a public key with the prefix `nlpub:` or `tlpub:`.
///
/// # Errors
/// The text is not a public key.
pub fn read_public(text: &str) -> Result<KeyId, DecodeError> {
    let hex = text.strip_prefix(PUBLIC).or_else(|| text.strip_prefix(SHOWN));
    let bytes = base16ct::mixed::decode_vec(hex.ok_or(DecodeError::Key)?);
    bytes.ok().and_then(|bytes| bytes.try_into().ok()).ok_or(DecodeError::Key)
}

/// Returns the encoded first checkpoint of a chain, with the trusted keys and the hashes of the
/// disablement secrets. `numbers` must be random.
///
/// # Errors
/// The signing key is not one of them, or they are not valid.
pub fn first_checkpoint(
    keys: &[NewKey],
    disablement_hashes: &[[u8; 32]],
    numbers: (u64, u64),
    by: &TkaKey,
) -> Result<Vec<u8>, VerifyError> {
    let keys = keys.iter().map(NewKey::key).collect::<Result<_, _>>()?;
    let state = State { keys, disablement_hashes: disablement_hashes.to_vec(), numbers };
    let text = Update::by(by, None, Kind::Checkpoint(state)).text();
    Authority::bootstrap(&text)?;
    Ok(text)
}

impl Authority {
    /// Returns encoded updates that add and remove keys, and a checkpoint if one is due.
    ///
    /// # Errors
    /// The signing key is not trusted, or the change is not valid.
    pub fn edit_keys(
        &self,
        by: &TkaKey,
        add: &[NewKey],
        remove: &[KeyId],
    ) -> Result<Vec<Vec<u8>>, VerifyError> {
        let add = add.iter().map(|key| Ok(Kind::Add(key.key()?)));
        let remove = remove.iter().map(|id| Ok(Kind::Remove(*id)));
        let kinds = add.chain(remove).collect::<Result<Vec<_>, DecodeError>>()?;
        let (mut state, mut parent, mut made) = (self.state.clone(), self.head(), Vec::new());
        let mut make = |kind: Kind, state: &mut State| {
            let update = Update::by(by, Some(parent), kind);
            update.check(state)?;
            state.apply(&update)?;
            if state.keys.len() > MAX_KEYS {
                return Err(VerifyError::TooManyKeys);
            }
            parent = update.hash();
            made.push(update.text());
            Ok(())
        };
        let count = kinds.len();
        for kind in kinds {
            make(kind, &mut state)?;
        }
        if count > 0 && self.since_checkpoint() + count >= CHECKPOINT_EVERY {
            make(Kind::Checkpoint(state.clone()), &mut state)?;
        }
        Ok(made)
    }

    /// Returns the number of active updates after the last checkpoint.
    fn since_checkpoint(&self) -> usize {
        self.path.iter().rev().take_while(|hash| !self.chain.is_checkpoint(hash)).count()
    }

    /// Signs a node key with a trusted key. The node renews the signature with the key `wrapping`,
    /// which may be empty.
    ///
    /// # Errors
    /// The signing key is not trusted.
    pub fn sign(
        &self,
        by: &TkaKey,
        node: &NodePublic,
        wrapping: &[u8],
    ) -> Result<Vec<u8>, VerifyError> {
        if !self.trusts(&by.id()) {
            return Err(VerifyError::UntrustedKey);
        }
        if !matches!(wrapping.len(), 0 | 32) {
            return Err(DecodeError::Key.into());
        }
        Ok(sign(by, node, wrapping))
    }

    /// Returns the encoded updates that another party with this head, or with one of these
    /// ancestors, does not have; `None` if all of them are unknown.
    pub fn missing_updates(
        &self,
        head: &UpdateHash,
        ancestors: &[UpdateHash],
    ) -> Option<Vec<Vec<u8>>> {
        let place = |hash: &UpdateHash| self.path.iter().position(|at| at == hash);
        let common = place(head).or_else(|| ancestors.iter().find_map(place))?;
        Some(self.path[common + 1..].iter().filter_map(|hash| self.chain.text(hash)).collect())
    }

    /// Returns the oldest stored update, encoded.
    pub fn oldest_update(&self) -> Vec<u8> {
        self.chain.text(&self.chain.oldest()).unwrap_or_default()
    }

    /// Returns the last active updates, the newest first: hash, type and encoding.
    pub fn log(&self, most: usize) -> Vec<(UpdateHash, &'static str, Vec<u8>)> {
        let entry = |hash: &UpdateHash| {
            let update = self.chain.get(hash)?;
            Some((*hash, update.word(), update.text()))
        };
        self.path.iter().rev().take(most).filter_map(entry).collect()
    }
}

/// Signs a node key, without a check that the signing key is trusted.
pub fn sign(by: &TkaKey, node: &NodePublic, wrapping: &[u8]) -> Vec<u8> {
    NodeSignature::direct(node, wrapping, by).text()
}
