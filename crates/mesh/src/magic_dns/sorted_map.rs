//! An immutable map in a sorted slice, which saves memory in large networks.

use std::{borrow::Borrow, collections::HashMap};

/// Sorted by key.
#[derive(Debug)]
pub(super) struct Table<K, V>(Box<[(K, V)]>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<K: Ord, V> From<HashMap<K, V>> for Table<K, V> {
    fn from(map: HashMap<K, V>) -> Self {
        let mut all: Box<[(K, V)]> = map.into_iter().collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Self(all)
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.0.binary_search_by(|(known, _)| known.borrow().cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
