//! Trusted keys (`tka/key.go`).

use ciborium::Value;
use ed25519_dalek::{Signature, VerifyingKey};

use super::{
    DecodeError,
    cbor::{Fields, Texts, Writing},
};

/// Ed25519, the only kind.
pub(super) const ED25519: u8 = 1;
/// The maximum number of votes of a key.
const MAX_VOTES: u64 = 4096;
/// The maximum size of a key's notes in bytes.
const MAX_NOTES: usize = 512;
/// The maximum number of notes of a key. Each needs 100 bytes of memory in addition to its text.
const MAX_NAMES: usize = 32;

/// The ID of a key: the Ed25519 public key.
pub type KeyId = [u8; 32];

/// A trusted key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub id: KeyId,
    /// The weight of its signature if two updates have the same parent.
    pub votes: u64,
    /// The notes of its owner.
    pub notes: Option<Texts>,
}

impl Key {
    pub(super) fn read(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let kind = fields.number::<u8>(1)?;
        let votes = fields.number(2)?.unwrap_or_default();
        let id = fields.exactly(3)?.ok_or(DecodeError::Field)?;
        let notes = fields.texts(12)?;
        fields.end()?;
        let key = Self { id, votes, notes };
        if kind == Some(ED25519) && key.is_valid() { Ok(key) } else { Err(DecodeError::Key) }
    }

    pub(super) fn is_valid(&self) -> bool {
        let is_short = |notes: &Texts| notes.len() <= MAX_NOTES && notes.all().len() <= MAX_NAMES;
        (1..=MAX_VOTES).contains(&self.votes) && self.notes.as_ref().is_none_or(is_short)
    }

    pub(super) fn value(&self) -> Value {
        Writing::default()
            .field(1, ED25519)
            .field(2, self.votes)
            .field(3, &self.id[..])
            .texts(12, self.notes.as_ref())
            .value()
    }
}

/// Returns whether a key signed this hash.
pub(super) fn has_signed(key: &KeyId, hash: &[u8; 32], signature: &[u8]) -> bool {
    let key = VerifyingKey::from_bytes(key);
    let signature = Signature::from_slice(signature);
    key.is_ok_and(|key| {
        signature.is_ok_and(|signature| key.verify_strict(hash, &signature).is_ok())
    })
}
