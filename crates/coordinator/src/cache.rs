//! A cache of values for several clients, bounded by number and bytes.

use std::{collections::HashMap, hash::Hash};

/// The maximum size of one cache, in bytes. Nodes choose the lengths of their texts.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// At most `MAX` recent values. A full cache removes all of them.
#[derive(Debug)]
pub struct Cache<K, V, const MAX: usize> {
    values: HashMap<K, V>,
    bytes: usize,
}

impl<K, V, const MAX: usize> Default for Cache<K, V, MAX> {
    fn default() -> Self {
        Self { values: HashMap::new(), bytes: 0 }
    }
}

impl<K: Eq + Hash, V, const MAX: usize> Cache<K, V, MAX> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    /// Stores a value, of this size in bytes.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        if bytes > MAX_BYTES {
            return;
        }
        if self.values.len() >= MAX || self.bytes + bytes > MAX_BYTES {
            self.values.clear();
            self.bytes = 0;
        }
        if self.values.insert(key, value).is_none() {
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bounded_by_number_and_by_bytes() {
        let mut cache = Cache::<_, _, 64>::default();
        for key in 0..1000 {
            cache.insert(key, key, 1 << 10);
            assert!(cache.values.len() <= 64 && cache.get(&key) == Some(&key));
        }
        let mut cache = Cache::<_, _, 64>::default();
        for key in 0..1000 {
            cache.insert(key, key, MAX_BYTES / 4 - 1);
            assert!(cache.values.len() <= 4 && cache.get(&key) == Some(&key));
        }
        let before = cache.values.clone();
        cache.insert(7, 7, MAX_BYTES + 1);
        assert_eq!(cache.values, before, "too long");
    }
}
