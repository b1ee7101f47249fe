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
        write!(f, "{} {}: {}", self.kind, self.which, self.why)
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
        let read = |(number, record): (usize, Value)| {
            let name = ["Name", "ID", "NodeID"].iter().find_map(|key| record.get(key));
            let which = name.map_or_else(|| format!("number {number}"), Value::to_string);
            match serde_json::from_value(record) {
                Ok(record) => Some(record),
                Err(error) => {
                    bad.push(BadRecord { kind, which, why: error.to_string() });
                    None
                }
            }
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
