//! Updates of the trusted keys (`tka/aum.go`).

use std::{fmt, str::FromStr};

use blake2::{Blake2s256, Digest as _};
use ciborium::Value;
use data_encoding::BASE32_NOPAD;

use super::{
    DecodeError, VerifyError,
    cbor::{self, Fields, Texts, Writing},
    private_key::TkaKey,
    trust_state::State,
    trusted_key::{Key, KeyId, has_signed},
};

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const NOTHING: u8 = 3;
const CHANGE: u8 = 4;
const CHECKPOINT: u8 = 5;

/// The hash of an update, which identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpdateHash(pub [u8; 32]);

impl fmt::Display for UpdateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE32_NOPAD.encode(&self.0))
    }
}

impl FromStr for UpdateHash {
    type Err = DecodeError;

    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let bytes = BASE32_NOPAD.decode(text.as_bytes()).map_err(|_| DecodeError::Hash)?;
        bytes.try_into().map(Self).map_err(|_| DecodeError::Hash)
    }
}

/// An update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    pub parent: Option<UpdateHash>,
    pub kind: Kind,
    signatures: Vec<(KeyId, [u8; 64])>,
}

/// The change by an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Add(Key),
    Remove(KeyId),
    Change {
        id: KeyId,
        votes: Option<u64>,
        notes: Option<Texts>,
    },
    Checkpoint(State),
    /// No change: the no-op or an unknown type, with its number.
    Nothing(u8),
}

impl Update {
    pub(super) fn read(text: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(cbor::read(text)?)?;
        let number = fields.number::<u8>(1)?.unwrap_or_default();
        let parent = fields.exactly(2)?.map(UpdateHash);
        let signatures = fields.list(23)?.into_iter().map(signature).collect::<Result<_, _>>()?;
        let kind = match number {
            ADD => Kind::Add(Key::read(fields.take(3).ok_or(DecodeError::Field)?)?),
            REMOVE => Kind::Remove(fields.exactly(4)?.ok_or(DecodeError::Field)?),
            CHANGE => {
                let id = fields.exactly(4)?.ok_or(DecodeError::Field)?;
                let (votes, notes) = (fields.number(6)?, fields.texts(7)?);
                if votes.is_none() && notes.is_none() {
                    return Err(DecodeError::Field);
                }
                Kind::Change { id, votes, notes }
            }
            CHECKPOINT => Kind::Checkpoint(State::read(fields.take(5).ok_or(DecodeError::Field)?)?),
            _ => Kind::Nothing(number),
        };
        fields.end()?;
        Ok(Self { parent, kind, signatures })
    }

    /// Creates a signed update.
    pub(super) fn by(by: &TkaKey, parent: Option<UpdateHash>, kind: Kind) -> Self {
        let mut update = Self { parent, kind, signatures: Vec::new() };
        update.signatures.push((by.id(), by.sign(&update.signed_hash())));
        update
    }

    /// Returns the encoded update, which is hashed.
    pub(super) fn text(&self) -> Vec<u8> {
        let signatures = self.signatures.iter().map(|(key, signature)| {
            Writing::default().field(1, &key[..]).field(2, &signature[..]).value()
        });
        self.written(signatures.collect())
    }

    fn written(&self, signatures: Vec<Value>) -> Vec<u8> {
        let parent = self.parent.map_or(Value::Null, |hash| Value::from(&hash.0[..]));
        let with = |number: u8| Writing::default().field(1, number).field(2, parent);
        let fields = match &self.kind {
            Kind::Add(key) => with(ADD).field(3, key.value()),
            Kind::Remove(id) => with(REMOVE).field(4, &id[..]),
            Kind::Change { id, votes, notes } => {
                with(CHANGE).field(4, &id[..]).some(6, *votes).texts(7, notes.as_ref())
            }
            Kind::Checkpoint(state) => with(CHECKPOINT).field(5, state.value()),
            Kind::Nothing(number) => with(*number),
        };
        let signatures = (!signatures.is_empty()).then_some(signatures);
        cbor::write(&fields.some(23, signatures).value())
    }

    /// Returns the number of its notes.
    pub(super) fn notes(&self) -> usize {
        let of = |notes: &Option<Texts>| notes.as_ref().map_or(0, |notes| notes.all().len());
        match &self.kind {
            Kind::Add(key) => of(&key.notes),
            Kind::Change { notes, .. } => of(notes),
            Kind::Checkpoint(state) => state.keys.iter().map(|key| of(&key.notes)).sum(),
            Kind::Remove(_) | Kind::Nothing(_) => 0,
        }
    }

    pub(super) fn hash(&self) -> UpdateHash {
        UpdateHash(Blake2s256::digest(self.text()).into())
    }

    fn signed_hash(&self) -> [u8; 32] {
        Blake2s256::digest(self.written(Vec::new())).into()
    }

    /// Returns the name of its type (`tka/aum.go`).
    pub(super) fn word(&self) -> &'static str {
        match self.kind {
            Kind::Add(_) => "add-key",
            Kind::Remove(_) => "remove-key",
            Kind::Change { .. } => "update-key",
            Kind::Checkpoint(_) => "checkpoint",
            Kind::Nothing(NOTHING) => "no-op",
            Kind::Nothing(_) => "unknown",
        }
    }

    /// Checks that it has signatures, and that all are valid and by trusted keys.
    pub(super) fn check(&self, state: &State) -> Result<(), VerifyError> {
        if self.signatures.is_empty() {
            return Err(VerifyError::Unsigned);
        }
        let hash = self.signed_hash();
        for (id, signature) in &self.signatures {
            let key = state.key(id).ok_or(VerifyError::UntrustedKey)?;
            if !has_signed(&key.id, &hash, signature) {
                return Err(VerifyError::BadSignature);
            }
        }
        match (&self.kind, &state.keys[..]) {
            (Kind::Remove(id), [last]) if last.id == *id => Err(VerifyError::LastKey),
            _ => Ok(()),
        }
    }

    /// Returns the votes of its signatures.
    pub(super) fn weight(&self, state: &State) -> u64 {
        let mut signers: Vec<&KeyId> = self.signatures.iter().map(|(id, _)| id).collect();
        signers.sort_unstable();
        signers.dedup();
        signers.into_iter().filter_map(|id| state.key(id)).map(|key| key.votes).sum()
    }
}

fn signature(value: Value) -> Result<(KeyId, [u8; 64]), DecodeError> {
    let mut fields = Fields::of(value)?;
    let (id, signature) = (fields.exactly(1)?, fields.exactly(2)?);
    fields.end()?;
    id.zip(signature).ok_or(DecodeError::Field)
}
