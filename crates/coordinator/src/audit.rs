//! The audit log of administrators' actions. The store has all entries, the state has the last ones.
//!
//! Each entry has the hash of the entry before it. If an entry is changed, removed or inserted, all following hashes
//! change. A copy of a hash is enough to detect this.
//!
//! ```text
//!   entry 6 ◄── SHA-256 ── entry 7 ◄── SHA-256 ── entry 8 ◄── SHA-256 ── the head
//! ```

mod chain;

use std::collections::VecDeque;

pub use self::chain::{ChainError, check_chain, parse_line, to_line};
use crate::{
    audit_hash::AuditHash,
    object::{AuditEntry, AuditId},
    time::Time,
};

/// The number of entries in memory. Older ones are in the store only.
pub const RECENT_ENTRIES: usize = 1000;
/// The maximum length of a text of an entry, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 10;

/// The last entries, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Audit(VecDeque<AuditEntry>);

impl Audit {
    /// The last entries, the newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &AuditEntry> {
        self.0.iter().rev().take(RECENT_ENTRIES)
    }

    /// The number and hash of the last entry; zero in an empty log.
    pub(crate) fn head(&self) -> (AuditId, AuditHash) {
        let last = self.0.back();
        last.map_or_else(Default::default, |entry| (entry.id, AuditHash::of(entry)))
    }

    /// Returns the next entry, with this number. Does not append it. Long texts are truncated.
    pub(crate) fn next_entry(
        &self,
        id: AuditId,
        who: &str,
        what: &str,
        refused: Option<&str>,
        at: Time,
    ) -> AuditEntry {
        let (_, previous) = self.head();
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_TEXT)].to_owned();
        let (who, what, refused) = (cut(who), cut(what), refused.map(cut));
        AuditEntry { id, at, who, what, refused, previous: Some(previous) }
    }

    /// Appends an entry, unless it is known already.
    pub(crate) fn push(&mut self, entry: AuditEntry) {
        if self.0.back().is_some_and(|last| last.id >= entry.id) {
            return;
        }
        self.0.push_back(entry);
    }

    /// Removes an entry that was not stored.
    pub(crate) fn remove(&mut self, id: AuditId) {
        if let Ok(at) = self.0.binary_search_by_key(&id, |entry| entry.id) {
            self.0.remove(at);
        }
    }

    /// Removes the oldest entries. Called when the newest are stored, because undo may remove those.
    pub(crate) fn trim(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(RECENT_ENTRIES));
    }
}
