//! Lists of records, of which one may be bad without the others being lost.

use std::fmt;

use serde::{
    Deserialize, Deserializer as _,
    de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Records that were not read yet: the text of a list. They are read one at a time, as each can take
/// much more memory than its text.
#[derive(Clone, Debug, Default)]
pub struct Records(Option<Box<RawValue>>);

/// What a list consists of.
pub trait Record: DeserializeOwned {
    /// The longest text of one, in bytes.
    const LONGEST: usize;

    /// Checks that the record makes sense.
    ///
    /// # Errors
    /// The reason why it does not.
    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Record for i64 {
    const LONGEST: usize = 20;
}

/// A record that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// What it should have been.
    pub kind: &'static str,
    /// Which: the name that it gives itself, or its number in the list.
    pub which: String,
    /// Why it cannot be read.
    pub why: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.which.is_empty() { "" } else { " " };
        write!(f, "{}{space}{}: {}", self.kind, self.which, self.why)
    }
}

/// The most that are told; the others are passed over too.
const MAX_REPORTED: usize = 32;
/// The longest text of each part, in bytes: a reason may quote what it refuses.
const LONGEST: usize = 200;

/// Takes note of one.
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

/// Its beginning.
pub(super) fn short(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// Reads a text of at most this length in bytes.
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
    /// Those of a list.
    ///
    /// # Errors
    /// It is not a list.
    pub(super) fn new(list: &RawValue) -> serde_json::Result<Self> {
        match list.get() {
            text if !text.starts_with('[') => Err(de::Error::custom("it is no list")),
            text if text[1..text.len() - 1].trim().is_empty() => Ok(Self(None)),
            _ => Ok(Self(Some(list.to_owned()))),
        }
    }

    /// Reads each, and hands over those that can be read. The others go to `bad`.
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
        debug_assert!(whole.is_ok(), "`new` takes lists alone");
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The name that a record gives itself, or its number in the list.
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
