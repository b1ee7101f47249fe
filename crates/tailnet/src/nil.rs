//! Lists and maps that are `null` if they are empty, as Go writes nil.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list or a map.
pub trait Collection {
    /// Returns whether it is empty.
    fn is_empty(&self) -> bool;
}

impl<T> Collection for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Collection for std::collections::BTreeMap<K, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Writes an empty collection as `null`.
pub fn serialize<T, S>(collection: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Collection + Serialize,
    S: Serializer,
{
    if collection.is_empty() {
        serializer.serialize_none()
    } else {
        collection.serialize(serializer)
    }
}

/// Reads `null` as an empty collection.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
