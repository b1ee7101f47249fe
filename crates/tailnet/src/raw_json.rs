//! JSON values that are stored without being interpreted.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::{RawValue, to_raw_value};

/// A JSON value, stored as compact text. A tree of values can take two hundred times as much
/// memory.
///
/// The value is checked as a tree would be: strings are valid Unicode, numbers are in range, and
/// the nesting is limited. Therefore every reader can parse the text.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Serializes a value.
    ///
    /// # Errors
    /// A map in the value has a key that is not a string.
    pub fn of(value: &impl Serialize) -> serde_json::Result<Self> {
        to_raw_value(value).map(Self)
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    pub(crate) fn raw(&self) -> &RawValue {
        &self.0
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// The value does not have that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.text())
    }
}

impl Default for Json {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        // A `Value` is always JSON.
        Self::of(value).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = Vec::new();
        deserializer.deserialize_any(Line(&mut text))?;
        let text = String::from_utf8(text).map_err(D::Error::custom)?;
        RawValue::from_string(text).map(Self).map_err(D::Error::custom)
    }
}

/// Writes a deserialized value as text without spaces.
struct Line<'a>(&'a mut Vec<u8>);

impl Line<'_> {
    fn scalar<E: serde::de::Error>(self, value: impl Serialize) -> Result<(), E> {
        serde_json::to_writer(self.0, &value).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.scalar(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.push(b'[');
        let empty = self.0.len();
        while items.next_element_seed(Line(self.0))?.is_some() {
            self.0.push(b',');
        }
        close(self.0, empty, b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.push(b'{');
        let empty = self.0.len();
        while entries.next_key_seed(Line(self.0))?.is_some() {
            self.0.push(b':');
            entries.next_value_seed(Line(self.0))?;
            self.0.push(b',');
        }
        close(self.0, empty, b'}');
        Ok(())
    }
}

/// Replaces the trailing comma by the end character.
fn close(text: &mut Vec<u8>, empty: usize, end: u8) {
    if text.len() > empty {
        text.pop();
    }
    text.push(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_stored_as_compact_text() {
        for text in [
            "null",
            "true",
            "-7",
            "18446744073709551615",
            "0.5",
            r#""a\n\u001b\"é""#,
            "[]",
            "{}",
            "[ 1 , [ ] , { } ]",
            "{ \"a\" :\n { \"b\" : [ null , \"c\" ] } , \"d\" : -1.5e3 }",
        ] {
            let json: Json = serde_json::from_str(text).unwrap();
            let tree: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(json.text(), tree.to_string());
            assert_eq!(serde_json::to_value(&json).unwrap(), tree);
        }
    }

    #[test]
    fn value_that_a_tree_cannot_hold_is_refused() {
        let nested = "[".repeat(130) + &"]".repeat(130);
        for text in [r#"["\ud800"]"#, "[1e999]", &nested, r#"{"\udc00":1}"#, "[1,]", "{"] {
            assert!(serde_json::from_str::<Json>(text).is_err(), "{text}");
        }
    }
}
