//! The hash chain of the audit log. An entry is a line of JSON with `at`, `id`, `previous`, `refused`, `what` and `who`,
//! in this order and without spaces: the canonical form of RFC 8785. The SHA-256 of the line is the entry's hash.

use std::fmt;

use serde::{Deserialize, Serialize, de};
use sha2::{Digest as _, Sha256};

use crate::{
    audit_hash::AuditHash,
    object::{AuditEntry, AuditId},
    time::Time,
};

/// Fields in the order of RFC 8785.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: String,
    id: AuditId,
    previous: Option<AuditHash>,
    refused: Option<String>,
    what: String,
    who: String,
}

/// Formats an entry as a line of JSON, without a line break.
pub fn to_line(entry: &AuditEntry) -> String {
    let AuditEntry { id, at, who, what, refused, previous } = entry.clone();
    // Times are parsed to the second.
    let at = Time(at.0 / 1000 * 1000);
    let line = Line { at: at.text(), id, previous, refused, what, who };
    serde_json::to_string(&line).expect("keys are texts, and nothing refuses")
}

/// Parses a line of [`to_line`].
///
/// # Errors
/// The line is not an entry, or not in the canonical form.
pub fn parse_line(text: &str) -> Result<AuditEntry, serde_json::Error> {
    let Line { at, id, previous, refused, what, who } = serde_json::from_str(text)?;
    let bad = || <serde_json::Error as de::Error>::custom(format_args!("{at:?} is not a time"));
    let at = Time::read(&at).ok_or_else(bad)?;
    let entry = AuditEntry { id, at, who, what, refused, previous };
    // Another form of the same entry would have another hash.
    match to_line(&entry) == text {
        true => Ok(entry),
        false => Err(de::Error::custom("not in the form that linerate-server writes")),
    }
}

impl AuditHash {
    /// Computes the hash of an entry.
    pub fn of(entry: &AuditEntry) -> Self {
        Self::new(Sha256::digest(to_line(entry)).into())
    }
}

/// The chain is broken: entries were changed, removed or inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The hash of the entry before does not match: one of them was changed, or entries between are missing.
    Broken {
        /// The entry.
        id: AuditId,
        /// The entry before it.
        before: Option<AuditId>,
    },
    /// The number of the entry is not higher than that of the entry before.
    Order {
        /// The entry.
        id: AuditId,
        /// The entry before it.
        before: AuditId,
    },
    /// The entry is without a previous hash, although the entry before it has one.
    Unchained(AuditId),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { id, before: Some(before) } if id.0 == before.0 + 1 => {
                write!(f, "entry {id} does not follow entry {before}: one of them was changed")
            }
            Self::Broken { id, before: Some(before) } => {
                write!(
                    f,
                    "entry {id} does not follow entry {before}: entries between them are missing"
                )
            }
            Self::Broken { id, before: None } => {
                write!(f, "entry {id} is not the first: entries before it are missing")
            }
            Self::Order { id, before } => {
                write!(f, "entry {id} comes after entry {before}: the order was changed")
            }
            Self::Unchained(id) => {
                write!(f, "entry {id} lacks a previous hash, although the entry before it has one")
            }
        }
    }
}

impl std::error::Error for ChainError {}

/// Checks all entries, in order from the first one. Returns the number and hash of the last entry. Of entries from
/// before the chain was introduced, only the last one is checked.
///
/// # Errors
/// The chain is broken.
pub fn check_chain<'a>(
    entries: impl IntoIterator<Item = &'a AuditEntry>,
) -> Result<Option<(AuditId, AuditHash)>, ChainError> {
    let (mut head, mut is_chained): (Option<(AuditId, AuditHash)>, _) = (None, false);
    for entry in entries {
        let id = entry.id;
        let before = head.map(|(before, _)| before);
        if let Some(before) = before.filter(|before| *before >= id) {
            return Err(ChainError::Order { id, before });
        }
        match entry.previous {
            Some(previous) => {
                let expected = head.map(|(_, hash)| hash).unwrap_or_default();
                if previous != expected {
                    return Err(ChainError::Broken { id, before });
                }
                is_chained = true;
            }
            None if is_chained => return Err(ChainError::Unchained(id)),
            None => {}
        }
        head = Some((id, AuditHash::of(entry)));
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(count: i64) -> Vec<AuditEntry> {
        let mut all: Vec<AuditEntry> = Vec::new();
        for id in 1..=count {
            let previous = Some(all.last().map(AuditHash::of).unwrap_or_default());
            let (who, what) = ("API key x".to_owned(), format!("command {id} \"\u{1}é\n\""));
            let refused = (id % 3 == 0).then(|| "no".to_owned());
            let at = Time(1_700_000_000_000 + id.unsigned_abs() * 1000);
            all.push(AuditEntry { id: AuditId(id), at, who, what, refused, previous });
        }
        all
    }

    #[test]
    fn a_line_has_the_canonical_form_of_rfc_8785() {
        let entry = &chain(3)[2];
        let text = to_line(entry);
        let sorted: std::collections::BTreeMap<String, serde_json::Value> =
            serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&sorted).unwrap(), text);
        assert!(text.contains(r#""what":"command 3 \"\u0001é\n\"""#), "{text}");
        assert_eq!(&parse_line(&text).unwrap(), entry);
        let within_a_second = AuditEntry { at: Time(entry.at.0 + 7), ..entry.clone() };
        assert_eq!(to_line(&within_a_second), text);
        for other in [text.replace(",\"id\"", ", \"id\""), text.replace('é', "\\u00e9")] {
            assert!(parse_line(&other).is_err(), "{other}");
        }
        let other = text.replace("{\"at\"", "{\"more\":1,\"at\"");
        assert!(parse_line(&other).is_err());
    }

    #[test]
    fn changed_removed_and_moved_entries_are_detected_and_named() {
        let all = chain(6);
        let head = check_chain(&all).unwrap().unwrap();
        assert_eq!(head, (AuditId(6), AuditHash::of(&all[5])));
        assert_eq!(check_chain(&[]), Ok(None));
        for at in 0..6 {
            let id = |at: usize| AuditId(at as i64 + 1);
            let mut changed = all.clone();
            changed[at].what.push('.');
            match check_chain(&changed) {
                // No entry follows the last one. Its hash differs from the recorded head.
                Ok(Some(other)) => assert!(at == 5 && other != head),
                fault => {
                    let broken = ChainError::Broken { id: id(at + 1), before: Some(id(at)) };
                    assert_eq!(fault, Err(broken));
                }
            }
            let mut cut = all.clone();
            cut.remove(at);
            match check_chain(&cut) {
                Ok(Some(other)) => assert!(at == 5 && other != head),
                fault => {
                    let before = at.checked_sub(1).map(id);
                    assert_eq!(fault, Err(ChainError::Broken { id: id(at + 1), before }));
                }
            }
            if at < 5 {
                let mut swapped = all.clone();
                swapped.swap(at, at + 1);
                assert!(check_chain(&swapped).is_err());
                let mut renumbered = swapped;
                (renumbered[at].id, renumbered[at + 1].id) = (id(at), id(at + 1));
                assert!(check_chain(&renumbered).is_err());
            }
        }
        let mut twice = all.clone();
        twice.insert(2, all[1].clone());
        let again = ChainError::Order { id: AuditId(2), before: AuditId(2) };
        assert_eq!(check_chain(&twice), Err(again));
        let mut unchained = all;
        unchained[4].previous = None;
        assert_eq!(check_chain(&unchained), Err(ChainError::Unchained(AuditId(5))));
    }
}
