//! What changed, in order. Whoever follows the network reads on from where it was; nothing is made
//! for each follower when something changes.
//!
//! A follower is told a number that says how far it has read: by the network's version, which all
//! servers of a network have in common, and by how much of this log stands behind that version. So it
//! may read on at another server, from a little before where it was: what of that it knows does no
//! harm.

use std::{collections::VecDeque, time::Duration};

use crate::{object::NodeId, time::Time};

/// The most changes that are kept. Who is further behind begins anew.
const MAX_CHANGES: usize = 1 << 16;

/// How much later than another a server may learn which nodes are connected: as long as a lease
/// lasts, and some time to read it.
const LAG: Duration = Duration::from_secs(15);

/// The bits of a position that tell which log it is of, and how much of it stands behind the version.
const MARK_BITS: u32 = 12;
const COUNT_BITS: u32 = 14;
/// Of more changes at one version the place among them is not told.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Parts of a node that followers know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parts(u16);

impl Parts {
    /// All of it: the node and others have to be told the whole of it.
    pub const WHOLE: Self = Self(1);
    /// Whether it is connected.
    pub const ONLINE: Self = Self(1 << 1);
    /// Where it may be reached.
    pub const ENDPOINTS: Self = Self(1 << 2);
    /// The region of its home.
    pub const HOME_RELAY: Self = Self(1 << 3);
    /// The key of its disco messages.
    pub const DISCO: Self = Self(1 << 4);
    /// What it speaks.
    pub const VERSION: Self = Self(1 << 5);
    /// What others have to be told the whole node for, and the node itself knows.
    pub const PEER_VIEW: Self = Self(1 << 6);
    /// That it is gone.
    pub const REMOVED: Self = Self(1 << 7);
    /// Whom it may reach, or who may reach it.
    pub const ACCESS: Self = Self(1 << 8);
    /// Its key, and when that expires: the node itself has to be told the whole of it.
    pub const KEY: Self = Self(1 << 9);
    /// None that followers here know otherwise: it was written, and is as it was known here. A
    /// client that followed another server may have been told what was between.
    pub const REWRITTEN: Self = Self(1 << 10);

    /// None.
    pub const fn none() -> Self {
        Self(0)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether these have one of those.
    pub fn has(self, those: Self) -> bool {
        self.0 & those.0 != 0
    }

    /// These without those.
    #[must_use]
    pub const fn without(self, those: Self) -> Self {
        Self(self.0 & !those.0)
    }

    /// These and those.
    #[must_use]
    pub const fn and(self, those: Self) -> Self {
        Self(self.0 | those.0)
    }
}

/// Something that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node's parts.
    Node {
        /// Which.
        id: NodeId,
        /// Its place.
        index: u32,
        /// What of it.
        parts: Parts,
    },
    /// Who may reach whom.
    Policy,
    /// What is said of tailnet lock.
    Tka,
    /// The relays that clients are told of.
    Relays,
}

/// The changes.
#[derive(Clone, Debug, Default)]
pub struct Log {
    changes: VecDeque<Change>,
    /// The number of the first that is kept.
    first: u64,
    /// Which log it is: another server's has another mark.
    mark: u16,
    /// Which history the versions are of: one that has lost some goes on with other ones by the same
    /// numbers.
    epoch: i64,
    versions: VecDeque<Version>,
}

/// Where the changes of a version of the network begin.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: i64,
    first: u64,
    /// When it was read or made here.
    at: Time,
}

impl Log {
    /// An empty one behind this version, read at this time.
    pub fn starting_at(version: i64, mark: u16, at: Time) -> Self {
        let versions = [Version { number: version, first: 0, at }].into();
        Self { mark: mark & ((1 << MARK_BITS) - 1), versions, ..Self::default() }
    }

    /// Which history its versions are of.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The same log of versions of this history.
    #[must_use]
    pub fn with_epoch(self, epoch: i64) -> Self {
        Self { epoch, ..self }
    }

    /// What is noted from now on is of this history. What was told by another is no place in it.
    pub fn begin_epoch(&mut self, epoch: i64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget_versions();
        }
    }

    fn forget_versions(&mut self) {
        self.versions.clear();
        self.mark = (self.mark + 1) & ((1 << MARK_BITS) - 1);
    }

    /// What is noted from now on is of this version. One that is lower is another history's: what was
    /// told by the former is no place in this one.
    pub fn begin(&mut self, version: i64, at: Time) {
        let end = self.end();
        if self.versions.back().is_some_and(|last| last.number > version) {
            self.forget_versions();
        }
        if self.versions.back().is_some_and(|last| last.number == version) {
            return;
        }
        // One that nothing was noted of is not worth a place, unless it is where the log begins.
        if self.versions.len() > 1 {
            self.versions.pop_back_if(|last| last.first == end);
        }
        let at = self.versions.back().map_or(at, |last| at.max(last.at));
        self.versions.push_back(Version { number: version, first: end, at });
        while self.versions.get(1).is_some_and(|second| second.first < self.first) {
            self.versions.pop_front();
        }
    }

    /// The number by which a follower that has read so far may go on. `None`: that is before the
    /// versions of this history.
    pub fn position(&self, end: u64) -> Option<i64> {
        // All that a version wrote is noted together: a stream that read of it has read that.
        let begun = self.versions.partition_point(|version| version.first < end);
        let last = self.versions.get(begun.saturating_sub(1))?;
        let count = end.checked_sub(last.first)?.min(MAX_COUNT);
        let rest = u64::from(self.mark) << COUNT_BITS | count;
        Some((last.number << (MARK_BITS + COUNT_BITS) | rest.cast_signed()) + 1)
    }

    /// The version of a position.
    pub fn version_of(position: i64) -> i64 {
        position.saturating_sub(1) >> (MARK_BITS + COUNT_BITS)
    }

    /// Whether a position is of this log.
    pub fn is_own(&self, position: i64) -> bool {
        let rest = position.saturating_sub(1).cast_unsigned() >> COUNT_BITS;
        rest & ((1 << MARK_BITS) - 1) == u64::from(self.mark)
    }

    /// From where a follower with this position reads on. `None`: it begins anew.
    pub fn find(&self, position: i64, now: Time) -> Option<u64> {
        let number = Self::version_of(position);
        let rest = position.checked_sub(1)?.cast_unsigned() & ((1 << (MARK_BITS + COUNT_BITS)) - 1);
        let (mark, count) = (rest >> COUNT_BITS, rest & MAX_COUNT);
        let known = self.versions.partition_point(|version| version.number <= number);
        let at = known.checked_sub(1)?;
        let version = self.versions.get(at)?;
        if mark == u64::from(self.mark) && count < MAX_COUNT {
            let from = version.first + count;
            return (version.number == number && from <= self.end()).then_some(from);
        }
        let newest = self.versions.back()?;
        let begun = self.versions.front()?;
        if number > newest.number || now.since(begun.at) < LAG {
            return None;
        }
        // What others told of connected nodes may not have been known there yet.
        let early = version.at.before(LAG);
        let begun = self.versions.partition_point(|version| version.at <= early);
        self.versions.get(begun.saturating_sub(1)).map(|version| version.first)
    }

    /// Notes one. If that makes it forget another, returns it.
    pub fn push(&mut self, change: Change) -> Option<Change> {
        self.changes.push_back(change);
        if self.changes.len() <= MAX_CHANGES {
            return None;
        }
        self.first += 1;
        self.changes.pop_front()
    }

    /// The number of the next.
    pub fn end(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Those from this number on, and before that one. `None`: some of them are forgotten.
    pub fn between(&self, number: u64, end: u64) -> Option<impl Iterator<Item = Change>> {
        let index = |number: u64| {
            let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
            Some(index.min(self.changes.len()))
        };
        let begin = index(number)?;
        Some(self.changes.range(begin..index(end)?.max(begin)).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(index: u32) -> Change {
        Change::Node { id: NodeId(1), index, parts: Parts::WHOLE }
    }

    #[test]
    fn a_follower_reads_on_until_what_it_missed_is_forgotten() {
        let mut log = Log::default();
        assert_eq!(log.between(0, log.end()).unwrap().count(), 0);
        log.push(change(0));
        log.push(change(1));
        assert_eq!(log.between(1, log.end()).unwrap().collect::<Vec<_>>(), [change(1)]);
        log.push(change(2));
        assert_eq!(log.between(1, 2).unwrap().collect::<Vec<_>>(), [change(1)]);
        let forgotten: Vec<Change> =
            (3..MAX_CHANGES as u32 + 1).filter_map(|at| log.push(change(at))).collect();
        assert_eq!(forgotten, [change(0)]);
        assert!(log.between(0, log.end()).is_none());
        assert_eq!(log.between(1, log.end()).unwrap().count(), MAX_CHANGES);
        assert_eq!(log.between(log.end(), log.end()).unwrap().count(), 0);
    }

    #[test]
    fn a_position_is_exact_in_its_own_log_and_early_in_another() {
        let minute = |number: u64| Time(number * 60_000);
        let [mut own, mut other] = [1, 2].map(|mark| Log::starting_at(7, mark, minute(0)));
        for version in 8..12 {
            for log in [&mut own, &mut other] {
                log.begin(version, minute(version.cast_unsigned()));
                log.push(change(0));
            }
        }
        // The other was told of a connection that is no version's.
        other.push(change(9));
        for end in 0..=own.end() {
            assert_eq!(own.find(own.position(end).unwrap(), minute(60)), Some(end));
        }
        assert_eq!(Log::version_of(own.position(2).unwrap()), 9);
        assert_eq!(
            other.find(own.position(2).unwrap(), minute(60)),
            Some(0),
            "from a little before"
        );
        assert_eq!(other.find(own.position(own.end()).unwrap(), minute(60)), Some(2));
        // One that has just begun may have missed nodes that were lost before.
        let new = Log::starting_at(9, 3, minute(59));
        assert_eq!(new.find(own.position(2).unwrap(), minute(59)), None);
        assert_eq!(new.find(own.position(2).unwrap(), minute(60)), Some(0));
        assert_eq!(new.find(own.position(own.end()).unwrap(), minute(60)), None, "it is behind");
        assert_eq!(
            new.find(own.position(0).unwrap(), minute(60)),
            None,
            "it does not know what was before"
        );
        for wrong in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(own.find(wrong, minute(60)), None);
        }
    }

    #[test]
    fn a_position_of_before_the_database_lost_versions_is_no_place_among_those_made_since() {
        let minute = |number: u64| Time(number * 60_000);
        let mut log = Log::starting_at(7, 1, minute(0));
        for version in 8..12 {
            log.begin(version, minute(version.cast_unsigned()));
            log.push(change(0));
        }
        let told = log.position(log.end()).unwrap();
        log.begin(9, minute(50));
        assert_eq!(log.position(log.end() - 1), None, "that is before the first of those");
        log.push(change(7));
        assert_eq!(log.find(told, minute(60)), None, "a version that is not there");
        for version in [10, 11] {
            log.begin(version, minute(51));
            log.push(change(8));
        }
        assert_eq!(log.find(told, minute(50)), None);
        assert_eq!(log.find(told, minute(60)), Some(log.end() - 3), "all since then");
        assert_eq!(log.find(log.position(log.end()).unwrap(), minute(60)), Some(log.end()));
    }
}
