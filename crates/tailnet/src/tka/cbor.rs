//! The CBOR encoding of tailnet lock (RFC 8949) that is hashed and signed: shortest integers,
//! ordered map keys, no indefinite lengths.
//!
//! The hash is computed from the re-encoded message. A decoder that ignores a field would compute a
//! different hash. Therefore unknown fields are rejected.

use std::collections::BTreeMap;

use ciborium::Value;

use super::DecodeError;

/// The deepest nesting (`tka/tka.go`, `cborDecOpts`): a signature that was renewed 15 times.
const DEEPEST: usize = 16;
/// The maximum number of items in a list.
const MAX_ITEMS: usize = 4096;
/// The limit of the library: one level more than allowed, because it counts inner values.
const RECURSION: usize = 2 * DEEPEST;

/// Reads a message.
pub(super) fn read(text: &[u8]) -> Result<Value, DecodeError> {
    let mut rest = text;
    let value: Value = ciborium::de::from_reader_with_recursion_limit(&mut rest, RECURSION)
        .map_err(|_| DecodeError::NotCbor)?;
    if !rest.is_empty() {
        return Err(DecodeError::NotCbor);
    }
    if depth(&value) > DEEPEST {
        return Err(DecodeError::TooDeep);
    }
    Ok(value)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Map(pairs) => {
            1 + pairs.iter().map(|(key, value)| depth(key).max(depth(value))).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// Writes a message.
pub(super) fn write(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    ciborium::into_writer(value, &mut text).expect("a buffer in memory grows");
    text
}

/// The fields of a decoded message. `null` is equivalent to absent.
pub(super) struct Fields(BTreeMap<u8, Value>);

impl Fields {
    /// Reads a map with small integers as keys.
    pub(super) fn of(value: Value) -> Result<Self, DecodeError> {
        let Value::Map(pairs) = value else { return Err(DecodeError::Field) };
        let mut fields = BTreeMap::new();
        for (key, value) in pairs {
            let key = key.as_integer().and_then(|key| u8::try_from(key).ok());
            let before = fields.insert(key.ok_or(DecodeError::Field)?, value);
            if before.is_some() {
                return Err(DecodeError::Field);
            }
        }
        fields.retain(|_, value| *value != Value::Null);
        Ok(Self(fields))
    }

    /// Removes and returns a field.
    pub(super) fn take(&mut self, key: u8) -> Option<Value> {
        self.0.remove(&key)
    }

    /// Removes a field with a number.
    pub(super) fn number<N: TryFrom<u64>>(&mut self, key: u8) -> Result<Option<N>, DecodeError> {
        let number = |value: Value| {
            let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
            number.and_then(|number| N::try_from(number).ok()).ok_or(DecodeError::Field)
        };
        self.take(key).map(number).transpose()
    }

    /// Removes a field with bytes; absent is equivalent to empty.
    pub(super) fn bytes(&mut self, key: u8) -> Result<Vec<u8>, DecodeError> {
        let bytes = |value: Value| value.into_bytes().map_err(|_| DecodeError::Field);
        Ok(self.take(key).map(bytes).transpose()?.unwrap_or_default())
    }

    /// Removes a field with exactly `N` bytes.
    pub(super) fn exactly<const N: usize>(
        &mut self,
        key: u8,
    ) -> Result<Option<[u8; N]>, DecodeError> {
        self.take(key).map(exactly).transpose()
    }

    /// Removes a field with a list.
    pub(super) fn list(&mut self, key: u8) -> Result<Vec<Value>, DecodeError> {
        let list = |value: Value| match value {
            Value::Array(items) if items.len() <= MAX_ITEMS => Ok(items),
            _ => Err(DecodeError::Field),
        };
        Ok(self.take(key).map(list).transpose()?.unwrap_or_default())
    }

    /// Removes a field with named texts.
    pub(super) fn texts(&mut self, key: u8) -> Result<Option<Texts>, DecodeError> {
        self.take(key).map(Texts::of).transpose()
    }

    /// Checks that no other field exists.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Field) }
    }
}

/// Reads exactly `N` bytes.
pub(super) fn exactly<const N: usize>(value: Value) -> Result<[u8; N], DecodeError> {
    let bytes = value.into_bytes().ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(DecodeError::Field)
}

/// Named texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Texts(BTreeMap<String, String>);

impl Texts {
    /// Returns the texts, if there are any.
    pub(super) fn some(texts: BTreeMap<String, String>) -> Option<Self> {
        (!texts.is_empty()).then_some(Self(texts))
    }

    fn of(value: Value) -> Result<Self, DecodeError> {
        let Value::Map(pairs) = value else { return Err(DecodeError::Field) };
        let mut texts = BTreeMap::new();
        for pair in pairs {
            let (Value::Text(name), Value::Text(text)) = pair else {
                return Err(DecodeError::Field);
            };
            if texts.insert(name, text).is_some() {
                return Err(DecodeError::Field);
            }
        }
        Ok(Self(texts))
    }

    /// Returns all texts.
    pub(super) fn all(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Returns the number of bytes of texts and names.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(name, text)| name.len() + text.len()).sum()
    }

    /// Encodes the texts in canonical order: shorter names first.
    fn value(&self) -> Option<Value> {
        let mut pairs: Vec<(&String, &String)> = self.0.iter().collect();
        pairs.sort_by_key(|(name, _)| (name.len(), *name));
        let pair = |(name, text): (&String, &String)| (name.as_str().into(), text.as_str().into());
        let pairs: Vec<(Value, Value)> = pairs.into_iter().map(pair).collect();
        (!pairs.is_empty()).then_some(Value::Map(pairs))
    }
}

/// The fields of a message to encode, in ascending order.
#[derive(Default)]
pub(super) struct Writing(Vec<(Value, Value)>);

impl Writing {
    /// Adds a field.
    pub(super) fn field(mut self, key: u8, value: impl Into<Value>) -> Self {
        self.0.push((key.into(), value.into()));
        self
    }

    /// Adds a field if it is present.
    pub(super) fn some(self, key: u8, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.field(key, value),
            None => self,
        }
    }

    /// Adds bytes if there are any.
    pub(super) fn bytes(self, key: u8, bytes: &[u8]) -> Self {
        self.some(key, (!bytes.is_empty()).then_some(bytes))
    }

    /// Adds texts if there are any.
    pub(super) fn texts(self, key: u8, texts: Option<&Texts>) -> Self {
        self.some(key, texts.and_then(Texts::value))
    }

    /// Returns the message.
    pub(super) fn value(self) -> Value {
        Value::Map(self.0)
    }
}
