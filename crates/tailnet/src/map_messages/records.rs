//! Lists of records. A bad record does not affect the others.

use std::fmt;

use serde::{
    Deserialize, Deserializer as _,
    de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// A list of unparsed records. They are parsed one at a time, because each can take much more
/// memory than its text.
#[derive(Clone, Debug, Default)]
pub struct Records(Option<Box<RawValue>>);

/// An item of a list.
pub trait Record: DeserializeOwned {
    /// The longest text of a record, in bytes.
    const LONGEST: usize;

    /// Checks the values of a record.
    ///
    /// # Errors
    /// The reason why they are not valid.
    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Record for i64 {
    const LONGEST: usize = 20;
}

/// An ignored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// The expected type of the record.
    pub kind: &'static str,
    /// The name in the record, or its index in the list.
    pub which: String,
    /// The reason why it was ignored.
    pub why: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.which.is_empty() { "" } else { " " };
        write!(f, "{}{space}{}: {}", self.kind, self.which, self.why)
    }
}

/// The maximum number of reported records. All bad records are ignored.
const MAX_REPORTED: usize = 32;
/// The longest text of each field, in bytes: a reason may quote the value.
const LONGEST: usize = 200;

/// Adds a record to the list.
pub(super) fn note(
    bad: &mut Vec<BadRecord>,
    kind: &'static str,
    which: String,
    why: &serde_json::Error,
) {
    if bad.len() < MAX_REPORTED {
        bad.push(BadRecord { kind, which, why: short(&why.to_string()) });
    }
}

/// Returns the beginning of a text.
pub(super) fn short(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// Parses a text of at most `most` bytes.
pub(super) fn read<T: DeserializeOwned>(text: &RawValue, most: usize) -> serde_json::Result<T> {
    let length = text.get().len();
    if length > most {
        return Err(de::Error::custom(format!("it has {length} bytes, more than {most}")));
    }
    serde_json::from_str(text.get())
}

/// Calls a function with each item of a list.
fn for_each_item<'a>(
    list: &'a RawValue,
    handle: impl FnMut(&'a RawValue),
) -> serde_json::Result<()> {
    struct Items<F>(F);
    impl<'a, F: FnMut(&'a RawValue)> Visitor<'a> for Items<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'a>>(mut self, mut items: A) -> Result<(), A::Error> {
            while let Some(item) = items.next_element()? {
                (self.0)(item);
            }
            Ok(())
        }
    }
    serde_json::Deserializer::from_str(list.get()).deserialize_seq(Items(handle))
}

/// Calls a function with each name and value of an object.
pub(super) fn for_each_entry<'a>(
    object: &'a RawValue,
    handle: impl FnMut(String, &'a RawValue),
) -> serde_json::Result<()> {
    struct Entries<F>(F);
    impl<'a, F: FnMut(String, &'a RawValue)> Visitor<'a> for Entries<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'a>>(mut self, mut entries: A) -> Result<(), A::Error> {
            while let Some((name, value)) = entries.next_entry()? {
                (self.0)(name, value);
            }
            Ok(())
        }
    }
    serde_json::Deserializer::from_str(object.get()).deserialize_map(Entries(handle))
}

impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        let [one, other] = [self, other].map(|records| records.0.as_deref().map(RawValue::get));
        one == other
    }
}

impl Records {
    /// Creates the list from its text.
    ///
    /// # Errors
    /// The text is not a list.
    pub(super) fn new(list: &RawValue) -> serde_json::Result<Self> {
        match list.get() {
            text if !text.starts_with('[') => Err(de::Error::custom("it is not a list")),
            text if text[1..text.len() - 1].trim().is_empty() => Ok(Self(None)),
            _ => Ok(Self(Some(list.to_owned()))),
        }
    }

    /// Parses the records, and calls `handle` with each. Unreadable ones are added to `bad`.
    pub fn for_each<T: Record>(
        &self,
        kind: &'static str,
        bad: &mut Vec<BadRecord>,
        mut handle: impl FnMut(T),
    ) {
        let Some(list) = &self.0 else { return };
        let mut number = 0;
        let whole = for_each_item(list, |record| {
            let read = read(record, T::LONGEST).and_then(|read: T| match read.check() {
                Ok(()) => Ok(read),
                Err(why) => Err(de::Error::custom(why)),
            });
            match read {
                Ok(record) => handle(record),
                Err(error) => note(bad, kind, name(record, number), &error),
            }
            number += 1;
        });
        debug_assert!(whole.is_ok(), "`new` accepts only lists");
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Returns the name in a record, or its index in the list.
fn name(record: &RawValue, number: usize) -> String {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "PascalCase", default)]
    struct Names<'a> {
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(rename = "ID")]
        id: Option<&'a RawValue>,
        #[serde(rename = "NodeID")]
        node_id: Option<&'a RawValue>,
    }
    let names: Names<'_> = serde_json::from_str(record.get()).unwrap_or_default();
    let name = names.name.or(names.id).or(names.node_id);
    name.map_or_else(|| format!("number {number}"), |name| short(name.get()))
}
