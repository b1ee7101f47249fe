//! The trusted keys at one point of the chain (`tka/state.go`).

use argon2::{Algorithm, Argon2, Params, Version};
use ciborium::Value;

use super::{
    DecodeError, VerifyError,
    cbor::{Fields, Writing, exactly},
    trusted_key::{Key, KeyId},
    update::{Kind, Update},
};

/// The maximum number of keys in a checkpoint.
pub(super) const MAX_KEYS: usize = 512;
/// The maximum number of disablement hashes in a checkpoint.
const MAX_DISABLERS: usize = 32;
/// The salt of the disablement hash (`DisablementKDF`), and its cost: KiB of memory, passes, lanes.
const SALT: &[u8] = b"tailscale network-lock disablement salt";
const COST: (u32, u32, u32) = (16 << 10, 4, 4);

/// The trusted keys and the disablement hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub keys: Vec<Key>,
    /// Hashes of the secrets that turn tailnet lock off.
    pub disablement_hashes: Vec<[u8; 32]>,
    /// Random numbers of the chain.
    pub numbers: (u64, u64),
}

impl State {
    pub(super) fn read(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        // The parent of a checkpoint is in the update, and not repeated here.
        let parent = fields.take(1);
        let disablement_hashes =
            fields.list(2)?.into_iter().map(exactly).collect::<Result<Vec<_>, _>>()?;
        let keys = fields.list(3)?.into_iter().map(Key::read).collect::<Result<Vec<_>, _>>()?;
        let numbers =
            (fields.number(4)?.unwrap_or_default(), fields.number(5)?.unwrap_or_default());
        fields.end()?;
        let is_valid = parent.is_none()
            && (1..=MAX_DISABLERS).contains(&disablement_hashes.len())
            && are_different(disablement_hashes.iter())
            && (1..=MAX_KEYS).contains(&keys.len())
            && are_different(keys.iter().map(|key| &key.id));
        let state = Self { keys, disablement_hashes, numbers };
        if is_valid { Ok(state) } else { Err(DecodeError::Checkpoint) }
    }

    pub(super) fn value(&self) -> Value {
        let disablement_hashes = self.disablement_hashes.iter().map(|hash| Value::from(&hash[..]));
        let numbers =
            [self.numbers.0, self.numbers.1].map(|number| Some(number).filter(|n| *n != 0));
        Writing::default()
            .field(1, Value::Null)
            .field(2, disablement_hashes.collect::<Vec<_>>())
            .field(3, self.keys.iter().map(Key::value).collect::<Vec<_>>())
            .some(4, numbers[0])
            .some(5, numbers[1])
            .value()
    }

    pub(super) fn key(&self, id: &KeyId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == *id)
    }

    /// Applies a verified update that follows this state.
    pub(super) fn apply(&mut self, update: &Update) -> Result<(), VerifyError> {
        match &update.kind {
            Kind::Add(key) if self.key(&key.id).is_some() => return Err(VerifyError::DuplicateKey),
            Kind::Add(key) => self.keys.push(key.clone()),
            Kind::Remove(id) => {
                let at = self.keys.iter().position(|key| key.id == *id);
                self.keys.remove(at.ok_or(VerifyError::UntrustedKey)?);
            }
            Kind::Change { id, votes, notes } => {
                let key = self.keys.iter_mut().find(|key| key.id == *id);
                let key = key.ok_or(VerifyError::UntrustedKey)?;
                let mut changed = key.clone();
                changed.votes = votes.unwrap_or(key.votes);
                changed.notes = notes.clone().or(changed.notes);
                if !changed.is_valid() {
                    return Err(VerifyError::Malformed(DecodeError::Key));
                }
                *key = changed;
            }
            Kind::Checkpoint(state) if state.numbers != self.numbers => {
                return Err(VerifyError::OtherChain);
            }
            Kind::Checkpoint(state) => self.clone_from(state),
            Kind::Nothing(_) => {}
        }
        Ok(())
    }

    /// Returns whether a secret with this hash turns tailnet lock off.
    pub(super) fn is_disabled_by(&self, hash: &[u8; 32]) -> bool {
        self.disablement_hashes.contains(hash)
    }
}

/// Returns the hash of a disablement secret. Takes 16 MiB of memory and about 50 ms.
pub fn disablement_hash(secret: &[u8]) -> Option<[u8; 32]> {
    let (memory, passes, lanes) = COST;
    let params = Params::new(memory, passes, lanes, Some(32)).expect("they are in range");
    let mut hash = [0; 32];
    let hashed = Argon2::new(Algorithm::Argon2i, Version::V0x13, params)
        .hash_password_into(secret, SALT, &mut hash);
    hashed.is_ok().then_some(hash)
}

fn are_different<'a>(all: impl Iterator<Item = &'a [u8; 32]>) -> bool {
    let mut seen = std::collections::HashSet::new();
    all.into_iter().all(|one| seen.insert(one))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{private_key::TkaKey, update::Update},
        *,
    };

    #[test]
    fn checkpoint_of_another_chain_is_refused() {
        let signer = TkaKey::new(&[1; 32]);
        let key = Key { id: signer.id(), votes: 1, notes: None };
        let of =
            |numbers| State { keys: vec![key.clone()], disablement_hashes: vec![[1; 32]], numbers };
        for (numbers, is_own) in [((1, 2), true), ((1, 3), false), ((3, 2), false)] {
            let update = Update::by(&signer, None, Kind::Checkpoint(of(numbers)));
            let applied = of((1, 2)).apply(&update);
            assert_eq!(applied, if is_own { Ok(()) } else { Err(VerifyError::OtherChain) });
        }
    }
}
