//! The stored updates, and the selection of the active ones.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    VerifyError,
    trust_state::State,
    update::{Kind, Update, UpdateHash},
};

/// The number of updates above which old ones are removed.
const COMPACT_ABOVE: usize = 256;
/// The minimum number of recent updates that stay (`tka/limits.go`, `CompactionDefaults`).
const MIN_RECENT: usize = 24;
/// The maximum number of stored updates, which limits searches (`tka/limits.go`,
/// `maxScanIterations`).
pub(super) const MAX_UPDATES: usize = 2000;
/// The maximum size of the stored updates in bytes, as [`weight`] counts them. A new node gets all
/// of them in one answer.
pub const MAX_BYTES: usize = 2 << 20;
/// The memory of one note in addition to its text.
const NOTE_MEMORY: usize = 128;

/// The stored updates: a tree with a checkpoint as root.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    oldest: UpdateHash,
    updates: BTreeMap<UpdateHash, Update>,
    /// The size of all updates.
    bytes: usize,
    children: BTreeMap<UpdateHash, BTreeSet<UpdateHash>>,
}

impl Chain {
    /// Creates a chain from a checkpoint, and returns its state.
    pub(super) fn new(first: Update) -> Result<(Self, State), VerifyError> {
        let Kind::Checkpoint(state) = &first.kind else { return Err(VerifyError::NoCheckpoint) };
        let (state, oldest, bytes) = (state.clone(), first.hash(), weight(&first));
        let updates = BTreeMap::from([(oldest, first)]);
        Ok((Self { oldest, updates, bytes, children: BTreeMap::new() }, state))
    }

    pub(super) fn oldest(&self) -> UpdateHash {
        self.oldest
    }

    pub(super) fn has(&self, hash: &UpdateHash) -> bool {
        self.updates.contains_key(hash)
    }

    pub(super) fn get(&self, hash: &UpdateHash) -> Option<&Update> {
        self.updates.get(hash)
    }

    pub(super) fn text(&self, hash: &UpdateHash) -> Option<Vec<u8>> {
        self.get(hash).map(Update::text)
    }

    pub(super) fn is_checkpoint(&self, hash: &UpdateHash) -> bool {
        self.get(hash).is_some_and(|update| matches!(update.kind, Kind::Checkpoint(_)))
    }

    pub(super) fn parent(&self, hash: &UpdateHash) -> Option<UpdateHash> {
        self.updates.get(hash)?.parent.filter(|_| *hash != self.oldest)
    }

    /// Returns all updates, each after its parent.
    pub(super) fn all(&self) -> Vec<&Update> {
        let (mut all, mut next) = (Vec::new(), vec![self.oldest]);
        while let Some(hash) = next.pop() {
            all.extend(self.updates.get(&hash));
            next.extend(self.children(&hash));
        }
        all
    }

    fn children(&self, hash: &UpdateHash) -> impl Iterator<Item = UpdateHash> {
        self.children.get(hash).into_iter().flatten().copied()
    }

    /// Adds a verified update. Its parent must be stored.
    pub(super) fn insert(&mut self, hash: UpdateHash, update: Update) -> Result<(), VerifyError> {
        let parent =
            update.parent.filter(|parent| self.has(parent)).ok_or(VerifyError::NoParent)?;
        let bytes = self.bytes + weight(&update);
        if self.updates.len() >= MAX_UPDATES || bytes > MAX_BYTES {
            return Err(VerifyError::TooMany);
        }
        self.bytes = bytes;
        self.children.entry(parent).or_default().insert(hash);
        self.updates.insert(hash, update);
        Ok(())
    }

    /// Returns the state after an update.
    pub(super) fn state_at(&self, hash: &UpdateHash) -> Result<State, VerifyError> {
        let (mut path, mut at) = (Vec::new(), *hash);
        let mut state = loop {
            let update = self.updates.get(&at).ok_or(VerifyError::NoParent)?;
            if let Kind::Checkpoint(state) = &update.kind {
                break state.clone();
            }
            path.push(update);
            at = self.parent(&at).ok_or(VerifyError::NoParent)?;
        };
        path.into_iter().rev().try_for_each(|update| state.apply(update))?;
        Ok(state)
    }

    /// Returns the active updates, and the state after them.
    pub(super) fn head(&self) -> Result<(Vec<UpdateHash>, State), VerifyError> {
        let (mut path, mut at) = (vec![self.oldest], self.oldest);
        let mut state = self.state_at(&at)?;
        while let Some((hash, update)) = self.next(&at, &state) {
            state.apply(update)?;
            path.push(hash);
            at = hash;
        }
        Ok((path, state))
    }

    /// Selects the active child: the one with the most votes; then one that removes a key; then the
    /// lowest hash (`tka/tka.go`, `pickNextAUM`).
    fn next(&self, at: &UpdateHash, state: &State) -> Option<(UpdateHash, &Update)> {
        let children = self.children(at).filter_map(|hash| Some((hash, self.updates.get(&hash)?)));
        children.min_by_key(|(hash, update)| {
            let removes = matches!(update.kind, Kind::Remove(_));
            (std::cmp::Reverse(update.weight(state)), !removes, *hash)
        })
    }

    /// If there are many updates, removes those before a checkpoint and their branches.
    pub(super) fn compact(&mut self, path: &[UpdateHash]) {
        let settled = path.len().saturating_sub(MIN_RECENT);
        let newest = path[..settled].iter().rev().find(|hash| self.is_checkpoint(hash));
        if let (Some(&oldest), true) = (newest, self.updates.len() > COMPACT_ABOVE) {
            let (mut kept, mut next) = (BTreeSet::new(), vec![oldest]);
            while let Some(hash) = next.pop() {
                next.extend(self.children(&hash));
                kept.insert(hash);
            }
            self.updates.retain(|hash, _| kept.contains(hash));
            self.bytes = self.updates.values().map(weight).sum();
            self.children.retain(|hash, _| kept.contains(hash));
            self.oldest = oldest;
        }
    }
}

/// Returns the size of an update: its encoding, and the memory of its notes.
fn weight(update: &Update) -> usize {
    update.text().len() + NOTE_MEMORY * update.notes()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{cbor::Texts, private_key::TkaKey, trusted_key::Key},
        *,
    };

    /// Returns how many updates of `kind` fit into a chain, and their size.
    fn taken(kind: impl Fn(u64) -> Kind) -> (usize, usize) {
        let signer = TkaKey::new(&[1; 32]);
        let first = Update::by(&signer, None, Kind::Checkpoint(state(1, 0, 0)));
        let (mut last, mut bytes) = (first.hash(), weight(&first));
        let (mut chain, _) = Chain::new(first).unwrap();
        for number in 1.. {
            let update = Update::by(&signer, Some(last), kind(number));
            let (hash, length) = (update.hash(), weight(&update));
            match chain.insert(hash, update) {
                Ok(()) => (last, bytes) = (hash, bytes + length),
                Err(refused) => {
                    assert_eq!(refused, VerifyError::TooMany);
                    break;
                }
            }
        }
        (chain.updates.len(), bytes)
    }

    /// Returns a state with this number of notes for each key.
    fn state(keys: u64, number: u64, notes: u8) -> State {
        let key = |key: u64| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&key.to_be_bytes());
            let note = |at: u8| (char::from(b'@' + at).to_string(), String::new());
            Key { id, votes: 1, notes: Texts::some((0..notes).map(note).collect()) }
        };
        let keys = (0..keys).map(key).collect();
        State { keys, disablement_hashes: vec![[1; 32]], numbers: (1, number) }
    }

    #[test]
    fn short_updates_are_limited_by_number_and_long_ones_by_size() {
        let (number, bytes) = taken(|_| Kind::Nothing(3));
        assert!(
            number == MAX_UPDATES && bytes < MAX_BYTES / 4,
            "{number} updates of {bytes} bytes"
        );
        let (number, bytes) = taken(|number| Kind::Checkpoint(state(512, number, 0)));
        assert!(number < MAX_UPDATES && bytes <= MAX_BYTES, "{number} updates of {bytes} bytes");
        assert!(bytes > MAX_BYTES - (64 << 10), "{bytes} bytes");
        let (with_notes, _) = taken(|number| Kind::Checkpoint(state(512, number, 32)));
        assert!(with_notes < number / 20, "{with_notes} updates with notes, {number} without");
    }
}
