//! Recent lookups: each key once in [`LOOKUP_TIMEOUT`], and at most [`LOOKUPS_MOST`] at a
//! time. All have the same time-out, so the oldest comes first.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use crate::{
    constants::{LOOKUP_TIMEOUT, LOOKUPS_MOST},
    time::Time,
};

/// Lookups by `K` that wait for an answer, each with what it is for.
#[derive(Debug)]
pub(crate) struct Lookups<K, V> {
    pending: HashMap<K, (Time, V)>,
    /// When each was asked, including those already answered.
    asked: VecDeque<(Time, K)>,
}

/// The result of [`Lookups::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The subscriber is to be asked.
    Anew,
    /// The subscriber was asked already.
    Again,
    /// Too many others wait.
    Full,
}

impl<K, V> Default for Lookups<K, V> {
    fn default() -> Self {
        Self { pending: HashMap::new(), asked: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, V> Lookups<K, V> {
    /// Asks about `key`, for the sake of `value`, which takes the place of an older one.
    pub fn ask(&mut self, key: K, value: V, now: Time) -> Asked {
        self.expire(now);
        if let Some((_, old)) = self.pending.get_mut(&key) {
            *old = value;
            return Asked::Again;
        }
        if self.asked.len() >= LOOKUPS_MOST {
            return Asked::Full;
        }
        self.pending.insert(key, (now, value));
        self.asked.push_back((now, key));
        Asked::Anew
    }

    /// The value of a pending lookup, which may have timed out.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.pending.get(key).map(|(_, value)| value)
    }

    /// Takes the value of a pending lookup, unless it has timed out.
    pub fn take(&mut self, key: &K, now: Time) -> Option<V> {
        self.expire(now);
        self.pending.remove(key).map(|(_, value)| value)
    }

    fn expire(&mut self, now: Time) {
        while let Some((asked, key)) = self.asked.front().copied()
            && now.since(asked) >= LOOKUP_TIMEOUT
        {
            self.asked.pop_front();
            if self.pending.get(&key).is_some_and(|(at, _)| *at == asked) {
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
    fn each_is_asked_once_until_it_times_out_and_the_newest_value_is_kept() {
        let mut lookups = Lookups::default();
        assert_eq!(lookups.ask('a', 1, at(0)), Asked::Anew);
        assert_eq!(lookups.ask('a', 2, at(4_999)), Asked::Again);
        assert_eq!(lookups.take(&'a', at(4_999)), Some(2));
        assert_eq!(lookups.take(&'a', at(4_999)), None);
        assert_eq!(lookups.ask('b', 3, at(4_999)), Asked::Anew);
        assert_eq!(lookups.ask('a', 4, at(4_999)), Asked::Anew);
        assert_eq!(lookups.take(&'b', at(9_998)), Some(3));
        assert_eq!(lookups.take(&'a', at(9_999)), None, "too late");
    }

    #[test]
    fn there_are_so_many_at_a_time_and_no_more_even_where_all_are_answered() {
        let mut lookups = Lookups::default();
        for key in 0..LOOKUPS_MOST {
            assert_eq!(lookups.ask(key, (), at(key as u64)), Asked::Anew);
            lookups.take(&key, at(key as u64));
        }
        let last = LOOKUPS_MOST as u64;
        assert_eq!(lookups.ask(LOOKUPS_MOST, (), at(last)), Asked::Full);
        assert_eq!(lookups.ask(LOOKUPS_MOST, (), at(5_000)), Asked::Anew, "the first timed out");
        assert_eq!(lookups.ask(0, (), at(5_000)), Asked::Full);
        lookups.ask(0, (), at(20_000));
        assert_eq!((lookups.asked.len(), lookups.pending.len()), (1, 1));
    }
}
