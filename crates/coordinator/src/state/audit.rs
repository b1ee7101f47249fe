//! Commands on the audit log.

use super::State;
use crate::{
    audit_hash::AuditHash,
    object::{AuditEntry, AuditId, Kind},
    time::Time,
};

impl State {
    /// The last entries, the newest first.
    pub fn audit(&self) -> impl Iterator<Item = &AuditEntry> {
        self.audit.entries()
    }

    /// The number and hash of the last entry; zero in an empty log.
    pub fn audit_head(&self) -> (AuditId, AuditHash) {
        self.audit.head()
    }

    /// Records an action, or its refusal.
    pub fn record_audit(&mut self, who: &str, what: &str, refused: Option<String>, now: Time) {
        let id = AuditId(self.journal.next_number(Kind::AuditEntry));
        let entry = self.audit.next_entry(id, who, what, refused.as_deref(), now);
        self.store(&entry);
        self.audit.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        audit::{ChainError, MAX_TEXT, RECENT_ENTRIES, check_chain},
        settings::Settings,
    };

    #[test]
    fn all_entries_are_stored_and_the_last_ones_stay_in_memory() {
        let mut state = State::new(Settings::default());
        let long = "é".repeat(MAX_TEXT);
        for at in 0..RECENT_ENTRIES as u64 + 2 {
            state.record_audit("API key x", &long, Some(long.clone()), Time(at));
        }
        let written = state.take_writes();
        assert_eq!(written.len(), RECENT_ENTRIES + 2);
        let ids: Vec<i64> = state.audit().map(|entry| entry.id.0).collect();
        assert_eq!(
            (ids.len(), ids[0], ids[RECENT_ENTRIES - 1]),
            (RECENT_ENTRIES, RECENT_ENTRIES as i64 + 2, 3)
        );
        let refused = |entry: &AuditEntry| entry.refused.as_ref().unwrap().len();
        assert!(
            state.audit().all(|entry| entry.what.len() <= MAX_TEXT && refused(entry) <= MAX_TEXT)
        );
        let entries: Vec<AuditEntry> = written
            .iter()
            .map(|stored| serde_json::from_str(stored.body.as_ref().unwrap()).unwrap())
            .collect();
        let loaded = State::load(Settings::default(), &written, (1, 0), Time(0)).unwrap();
        assert!(loaded.audit().eq(state.audit()));
        assert_eq!(loaded.audit_head(), state.audit_head());
        assert_eq!(check_chain(&entries), Ok(Some(state.audit_head())));
    }

    #[test]
    fn the_chain_continues_after_the_last_stored_entry() {
        let mut state = State::new(Settings::default());
        let note = |state: &mut State, count: usize, what: &str| {
            (0..count).for_each(|_| state.record_audit("x", what, None, Time(1)));
        };
        note(&mut state, RECENT_ENTRIES, "kept");
        let mut store = state.take_writes();
        state.publish(1, Time(1));
        let before: Vec<AuditEntry> = state.audit().cloned().collect();
        note(&mut state, 2 * RECENT_ENTRIES, "not kept");
        state.undo(Time(2));
        assert!(state.audit().eq(&before));
        // An entry of another server comes in between.
        let mut other = State::load(Settings::default(), &store, (1, 1), Time(2)).unwrap();
        note(&mut other, 1, "another server's");
        let written = other.take_writes();
        state.apply(&written, Time(3)).unwrap();
        state.publish(2, Time(3));
        store.extend(written);
        note(&mut state, 2, "lost by the database");
        state.take_writes();
        state.publish(3, Time(4));
        state.reconcile(store.clone(), 0, Time(5)).unwrap();
        assert_eq!(state.audit_head(), other.audit_head());
        note(&mut state, 1, "last");
        store.extend(state.take_writes());
        let read = |stored: &crate::object::Stored| {
            serde_json::from_str::<AuditEntry>(stored.body.as_ref().unwrap()).unwrap()
        };
        let entries: Vec<AuditEntry> = store.iter().map(read).collect();
        assert_eq!(entries.len(), RECENT_ENTRIES + 2);
        assert_eq!(check_chain(&entries), Ok(Some(state.audit_head())));
    }

    #[test]
    fn the_chain_of_an_older_store_begins_after_its_last_entry() {
        let old = |id| AuditEntry {
            id: AuditId(id),
            at: Time(7),
            who: "x".into(),
            what: "y".into(),
            refused: None,
            previous: None,
        };
        let stored = [1, 2].map(|id| crate::object::Object::stored(&old(id)));
        let mut state = State::load(Settings::default(), &stored, (1, 0), Time(0)).unwrap();
        state.record_audit("x", "z", Some("no".into()), Time(8));
        let last = state.audit().next().unwrap();
        assert_eq!(last.previous, Some(AuditHash::of(&old(2))));
        let all = [old(1), old(2), last.clone()];
        assert_eq!(check_chain(&all), Ok(Some(state.audit_head())));
        let changed = AuditEntry { what: "other".into(), ..old(2) };
        let fault = check_chain(&[old(1), changed, last.clone()]).unwrap_err();
        assert_eq!(fault, ChainError::Broken { id: AuditId(3), before: Some(AuditId(2)) });
    }
}
