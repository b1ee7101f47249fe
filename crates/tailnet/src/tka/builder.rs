//! What a trusted key makes: the first checkpoint, updates, and signatures of node keys
//! (`tka/builder.go`, `ipn/ipnlocal/tailnet-lock.go`).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Authority, DecodeError, UpdateHash, VerifyError,
    cbor::Texts,
    key::{ED25519, Key, KeyId},
    private_key::{PUBLIC, SHOWN, TkaKey},
    signature::NodeSignature,
    state::{MOST_KEYS, State},
    sync::base64,
    update::{Kind, Update},
};
use crate::keys::NodePublic;

/// The most updates behind a checkpoint before another is made (`tka/builder.go`).
const CHECKPOINT_EVERY: usize = 50;

/// A key that is to be trusted, or no more, as programs name it (tailscale `tka.Key`).
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
    /// A key with so many votes and nothing noted with it.
    pub fn new(id: KeyId, votes: u64) -> Self {
        Self { kind: ED25519, votes, public: id.to_vec(), meta: None }
    }

    /// Its number.
    ///
    /// # Errors
    /// It is none of Ed25519.
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

/// Reads a key's public half, as `nlpub:` or `tlpub:`.
///
/// # Errors
/// It is none.
pub fn read_public(text: &str) -> Result<KeyId, DecodeError> {
    let hex = text.strip_prefix(PUBLIC).or_else(|| text.strip_prefix(SHOWN));
    let bytes = base16ct::mixed::decode_vec(hex.ok_or(DecodeError::Key)?);
    bytes.ok().and_then(|bytes| bytes.try_into().ok()).ok_or(DecodeError::Key)
}

/// The text of the checkpoint that a chain begins with: which keys are trusted, and the hashes of
/// the secrets of which each turns tailnet lock off. `numbers` are random.
///
/// # Errors
/// The key that signs is none of them, or they may not be.
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
    /// Updates that add keys and remove others, and a checkpoint where one is due.
    ///
    /// # Errors
    /// The key that signs is not trusted, or it cannot be done.
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
            if state.keys.len() > MOST_KEYS {
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

    /// How many updates that count follow the last checkpoint.
    fn since_checkpoint(&self) -> usize {
        self.path.iter().rev().take_while(|hash| !self.chain.is_checkpoint(hash)).count()
    }

    /// The signature of a node key, by a key that is trusted here. The node renews it by the key
    /// `wrapping`, which may be empty.
    ///
    /// # Errors
    /// The key that signs is not trusted.
    pub fn sign(
        &self,
        by: &TkaKey,
        node: &NodePublic,
        wrapping: &[u8],
    ) -> Result<Vec<u8>, VerifyError> {
        if !self.trusts(&by.id()) {
            return Err(VerifyError::NoSuchKey);
        }
        if !matches!(wrapping.len(), 0 | 32) {
            return Err(DecodeError::Key.into());
        }
        Ok(sign(by, node, wrapping))
    }

    /// The updates that somebody lacks who has this head, or one of these before it. `None`: all of
    /// what is said there is unknown here.
    pub fn missing_updates(
        &self,
        head: &UpdateHash,
        ancestors: &[UpdateHash],
    ) -> Option<Vec<Vec<u8>>> {
        let place = |hash: &UpdateHash| self.path.iter().position(|at| at == hash);
        let common = place(head).or_else(|| ancestors.iter().find_map(place))?;
        Some(self.path[common + 1..].iter().filter_map(|hash| self.chain.text(hash)).collect())
    }

    /// The text of the first update that is known.
    pub fn oldest_update(&self) -> Vec<u8> {
        self.chain.text(&self.chain.oldest()).unwrap_or_default()
    }

    /// The last updates that count, the newest first: hash, what it does, and text.
    pub fn log(&self, most: usize) -> Vec<(UpdateHash, &'static str, Vec<u8>)> {
        let entry = |hash: &UpdateHash| {
            let update = self.chain.get(hash)?;
            Some((*hash, update.word(), update.text()))
        };
        self.path.iter().rev().take(most).filter_map(entry).collect()
    }
}

/// The signature of a node key, whoever trusts the key that signs.
pub fn sign(by: &TkaKey, node: &NodePublic, wrapping: &[u8]) -> Vec<u8> {
    NodeSignature::direct(node, wrapping, by).text()
}
