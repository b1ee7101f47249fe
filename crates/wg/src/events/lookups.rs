//! Recent lookups: each key once in [`LOOKUP_TIMEOUT`], and at most [`MAX_LOOKUPS`] at a time. All
//! have the same timeout, so the oldest comes first.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use crate::{
    constants::{LOOKUP_TIMEOUT, MAX_LOOKUPS},
    time::Time,
};

/// Lookups by `K` that wait for an answer, each with a value.
#[derive(Debug)]
pub(crate) struct Lookups<K, V> {
    pending: HashMap<K, (Time, V)>,
    /// Time of each request, including answered ones.
    requested: VecDeque<(Time, K)>,
}

/// Result of [`Lookups::request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupState {
    /// The lookup is new: notify the subscriber.
    New,
    /// The subscriber was notified before.
    Pending,
    /// Too many lookups are pending.
    Full,
}

impl<K, V> Default for Lookups<K, V> {
    fn default() -> Self {
        Self { pending: HashMap::new(), requested: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, V> Lookups<K, V> {
    /// Requests a lookup of `key`. `value` replaces the value of a pending lookup.
    pub(crate) fn request(&mut self, key: K, value: V, now: Time) -> LookupState {
        self.expire(now);
        if let Some((_, old)) = self.pending.get_mut(&key) {
            *old = value;
            return LookupState::Pending;
        }
        if self.requested.len() >= MAX_LOOKUPS {
            return LookupState::Full;
        }
        self.pending.insert(key, (now, value));
        self.requested.push_back((now, key));
        LookupState::New
    }

    /// Returns the value of a pending lookup, even if it has timed out.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.pending.get(key).map(|(_, value)| value)
    }

    /// Takes the value of a pending lookup, unless it has timed out.
    pub(crate) fn take(&mut self, key: &K, now: Time) -> Option<V> {
        self.expire(now);
        self.pending.remove(key).map(|(_, value)| value)
    }

    fn expire(&mut self, now: Time) {
        while let Some((requested, key)) = self.requested.front().copied()
            && now.since(requested) >= LOOKUP_TIMEOUT
        {
            self.requested.pop_front();
            if self.pending.get(&key).is_some_and(|(at, _)| *at == requested) {
                self.pending.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(1) + Duration::from_millis(millis)
    }

    #[test]
    fn lookup_is_new_once_until_its_timeout_and_returns_the_newest_value() {
        let mut lookups = Lookups::default();
        assert_eq!(lookups.request('a', 1, at(0)), LookupState::New);
        assert_eq!(lookups.request('a', 2, at(4_999)), LookupState::Pending);
        assert_eq!(lookups.take(&'a', at(4_999)), Some(2));
        assert_eq!(lookups.take(&'a', at(4_999)), None);
        assert_eq!(lookups.request('b', 3, at(4_999)), LookupState::New);
        assert_eq!(lookups.request('a', 4, at(4_999)), LookupState::New);
        assert_eq!(lookups.take(&'b', at(9_998)), Some(3));
        assert_eq!(lookups.take(&'a', at(9_999)), None, "too late");
    }

    #[test]
    fn lookups_are_limited_even_if_all_were_answered() {
        let mut lookups = Lookups::default();
        for key in 0..MAX_LOOKUPS {
            assert_eq!(lookups.request(key, (), at(key as u64)), LookupState::New);
            lookups.take(&key, at(key as u64));
        }
        let last = MAX_LOOKUPS as u64;
        assert_eq!(lookups.request(MAX_LOOKUPS, (), at(last)), LookupState::Full);
        assert_eq!(
            lookups.request(MAX_LOOKUPS, (), at(5_000)),
            LookupState::New,
            "the first timed out"
        );
        assert_eq!(lookups.request(0, (), at(5_000)), LookupState::Full);
        lookups.request(0, (), at(20_000));
        assert_eq!((lookups.requested.len(), lookups.pending.len()), (1, 1));
    }
}
