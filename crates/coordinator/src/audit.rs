//! What administrators did, in order. The store has all of it, the state the last entries.

use std::collections::VecDeque;

use crate::{
    object::{AuditEntry, AuditId, Kind},
    state::State,
    time::Time,
};

/// The last entries that are at hand. Older ones are in the store alone.
pub const KEPT: usize = 1000;
/// The longest text of an entry, in bytes.
const LONGEST: usize = 1 << 10;

/// The last entries, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Audit(VecDeque<AuditEntry>);

impl Audit {
    /// Takes the next entry.
    pub(crate) fn push(&mut self, entry: AuditEntry) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }
}

impl State {
    /// The last entries of the audit, the newest first.
    pub fn audit(&self) -> impl Iterator<Item = &AuditEntry> {
        self.audit.0.iter().rev()
    }

    /// Writes down what somebody did, or was refused.
    pub fn note_deed(&mut self, who: &str, what: &str, refused: Option<String>, now: Time) {
        let id = AuditId(self.next_number(Kind::AuditEntry));
        let cut = |text: &str| text[..text.floor_char_boundary(LONGEST)].to_owned();
        let (who, what) = (cut(who), cut(what));
        let entry = AuditEntry { id, at: now, who, what, refused };
        self.keep(&entry);
        self.audit.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn the_store_is_given_every_entry_and_the_state_has_the_last() {
        let mut state = State::new(Settings::default());
        let long = "é".repeat(LONGEST);
        for at in 0..KEPT as u64 + 2 {
            state.note_deed("API key x", &long, None, Time(at));
        }
        let written = state.take_writes();
        assert_eq!(written.len(), KEPT + 2);
        let ids: Vec<i64> = state.audit().map(|entry| entry.id.0).collect();
        assert_eq!((ids.len(), ids[0], ids[KEPT - 1]), (KEPT, KEPT as i64 + 2, 3));
        assert!(state.audit().all(|entry| entry.what.len() <= LONGEST));
        let loaded = State::load(Settings::default(), written, Time(0)).unwrap();
        assert!(loaded.audit().eq(state.audit()));
    }
}
