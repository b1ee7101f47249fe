//! Lists of records, of which one may be bad without the others being lost.

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::local::nil::Collection;

/// Records that were not read yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Records(pub Vec<Value>);

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
const TOLD: usize = 32;
/// The longest text of each part, in bytes: a reason may quote what it refuses.
const LONGEST: usize = 200;

/// Takes note of one.
pub(super) fn note(
    bad: &mut Vec<BadRecord>,
    kind: &'static str,
    which: String,
    why: &serde_json::Error,
) {
    if bad.len() < TOLD {
        bad.push(BadRecord { kind, which, why: short(&why.to_string()) });
    }
}

/// Its beginning.
pub(super) fn short(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// Go reads `null` as nothing; but the name of a capability counts without values.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            let others = fields.iter_mut().filter(|(name, _)| *name != "CapMap");
            others.for_each(|(_, value)| drop_nulls(value));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl Collection for Records {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Records {
    /// Those that can be read. The others go to `bad`.
    pub fn read<T: DeserializeOwned>(self, kind: &'static str, bad: &mut Vec<BadRecord>) -> Vec<T> {
        let read = |(number, mut record): (usize, Value)| {
            drop_nulls(&mut record);
            let name = ["Name", "ID", "NodeID"].iter().find_map(|key| record.get(key));
            let name = name.map(|name| short(&name.to_string()));
            let read = serde_json::from_value(record);
            let which = || name.unwrap_or_else(|| format!("number {number}"));
            read.map_err(|error| note(bad, kind, which(), &error)).ok()
        };
        self.0.into_iter().enumerate().filter_map(read).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
