//! The chain of the audit, and its entries as lines of JSON: `at`, `id`, `previous`, `refused`,
//! `what` and `who`, in this order and without spaces, which is the canonical form of RFC 8785. Its
//! SHA-256 is the entry's hash.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::{
    object::{AuditEntry, AuditId},
    time::Time,
};

/// The hash of an entry. That of none, which the first of all entries follows, is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditHash([u8; 32]);

/// Members in the order of RFC 8785.
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

/// An entry as a line of JSON, without its end.
pub fn to_line(entry: &AuditEntry) -> String {
    let AuditEntry { id, at, who, what, refused, previous } = entry.clone();
    // Times are read to the second.
    let at = Time(at.0 / 1000 * 1000);
    let line = Line { at: at.text(), id, previous, refused, what, who };
    serde_json::to_string(&line).expect("keys are texts, and nothing refuses")
}

/// Reads an entry as [`to_line`] writes it.
///
/// # Errors
/// It is none.
pub fn parse_line(text: &str) -> Result<AuditEntry, serde_json::Error> {
    let Line { at, id, previous, refused, what, who } = serde_json::from_str(text)?;
    let bad = || <serde_json::Error as de::Error>::custom(format_args!("{at:?} is not a time"));
    let at = Time::read(&at).ok_or_else(bad)?;
    let entry = AuditEntry { id, at, who, what, refused, previous };
    // Another text of the same would have another hash.
    match to_line(&entry) == text {
        true => Ok(entry),
        false => Err(de::Error::custom("it is not written as linerate-server writes it")),
    }
}

impl AuditHash {
    /// That of an entry.
    pub fn of(entry: &AuditEntry) -> Self {
        Self(Sha256::digest(to_line(entry)).into())
    }
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base16ct::lower::encode_string(&self.0))
    }
}

impl FromStr for AuditHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hash = [0; 32];
        match base16ct::lower::decode(text, &mut hash) {
            Ok(read) if read.len() == 32 => Ok(Self(hash)),
            _ => Err("not a hash of 64 hexadecimal digits"),
        }
    }
}

impl Serialize for AuditHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Where entries are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// An entry follows another one than that before it: that was changed, or this one was, or some
    /// between them are gone.
    Broken {
        /// The entry.
        id: AuditId,
        /// The one before it here.
        before: Option<AuditId>,
    },
    /// An entry stands behind one of a higher number, or its own.
    Order {
        /// The entry.
        id: AuditId,
        /// The one before it here.
        before: AuditId,
    },
    /// An entry has no hash of the one before it, which has one.
    Unchained(AuditId),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { id, before: Some(before) } if id.0 == before.0 + 1 => {
                write!(f, "entry {id} does not follow entry {before}: one of them was changed")
            }
            Self::Broken { id, before: Some(before) } => {
                write!(f, "entry {id} does not follow entry {before}: entries are missing between")
            }
            Self::Broken { id, before: None } => {
                write!(f, "entry {id} is not the first: entries before it are missing")
            }
            Self::Order { id, before } => {
                write!(f, "entry {id} stands behind entry {before}: the order was changed")
            }
            Self::Unchained(id) => {
                write!(f, "entry {id} names no entry before it, and stands behind one that does")
            }
        }
    }
}

impl std::error::Error for ChainError {}

/// Checks entries, in order from the first of all. Returns the last one's number and hash, if there
/// is an entry. What was written before there was a chain is not checked, but for its last entry.
///
/// # Errors
/// They are not those that were written.
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
    fn the_canonical_form_is_that_of_rfc_8785() {
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
    fn whatever_is_changed_taken_out_or_moved_is_found_and_named() {
        let all = chain(6);
        let head = check_chain(&all).unwrap().unwrap();
        assert_eq!(head, (AuditId(6), AuditHash::of(&all[5])));
        assert_eq!(check_chain(&[]), Ok(None));
        for at in 0..6 {
            let id = |at: usize| AuditId(at as i64 + 1);
            let mut changed = all.clone();
            changed[at].what.push('.');
            match check_chain(&changed) {
                // Nothing follows the last: its hash is another than the one that was noted.
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
