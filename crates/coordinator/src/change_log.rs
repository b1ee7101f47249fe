//! The changes of the network, in order. Each stream reads the log from its own position, so that a change costs
//! nothing for each stream when it happens.
//!
//! A client gets a number for its position: the version of the network, which all servers have in common, and the
//! number of changes since that version in this log. At another server, the client resumes from a slightly earlier
//! position. The repeated changes do no harm.

use std::{collections::VecDeque, time::Duration};

use crate::{object::NodeId, time::Time};

/// The maximum length of the log. A stream that is further behind starts with a full map.
const MAX_CHANGES: usize = 1 << 16;

/// The maximum delay with which a server learns about connections at another one: the duration of a lease, and some
/// time to read it.
const LAG: Duration = Duration::from_secs(15);

/// Bits of a position for the mark of the log, and for the number of changes since the version.
const MARK_BITS: u32 = 12;
const COUNT_BITS: u32 = 14;
/// The maximum count in a position. If a version has more changes, the position is not exact.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

/// A set of changed parts of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Parts(u16);

impl Parts {
    /// Everything: the node and its peers need all fields.
    pub(crate) const WHOLE: Self = Self(1);
    /// The connection status.
    pub(crate) const ONLINE: Self = Self(1 << 1);
    /// The endpoints.
    pub(crate) const ENDPOINTS: Self = Self(1 << 2);
    /// The home relay.
    pub(crate) const HOME_RELAY: Self = Self(1 << 3);
    /// The disco key.
    pub(crate) const DISCO: Self = Self(1 << 4);
    /// The capability version.
    pub(crate) const VERSION: Self = Self(1 << 5);
    /// Fields that peers get with the whole node, and that the node itself does not need.
    pub(crate) const PEER_VIEW: Self = Self(1 << 6);
    /// The node was removed.
    pub(crate) const REMOVED: Self = Self(1 << 7);
    /// The nodes that it may reach, or that may reach it.
    pub(crate) const ACCESS: Self = Self(1 << 8);
    /// The node key and its expiry. The node itself needs all fields.
    pub(crate) const KEY: Self = Self(1 << 9);
    /// The node was written, but has its previous value. A client of another server may have received a value in
    /// between.
    pub(crate) const REWRITTEN: Self = Self(1 << 10);

    /// The empty set.
    pub(crate) const fn empty() -> Self {
        Self(0)
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the sets have a common part.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The parts that are not in `other`.
    #[must_use]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The union of both sets.
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A change of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Parts of a node changed.
    Node { id: NodeId, index: u32, parts: Parts },
    /// The policy changed.
    Policy,
    /// The state of tailnet lock changed.
    Tka,
    /// The relays changed.
    Relays,
}

/// The log of changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    changes: VecDeque<Change>,
    /// The number of the first change in `changes`.
    first: u64,
    /// The mark of this log; other servers have other marks.
    mark: u16,
    /// The epoch of the versions. After the database lost versions, their numbers are used again in a new epoch.
    epoch: i64,
    versions: VecDeque<Version>,
}

/// The first change of a version of the network.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: i64,
    first: u64,
    /// The time at which this server read or made the version.
    at: Time,
}

impl Log {
    /// Returns an empty log that begins at a version, which was read at this time.
    pub(crate) fn starting_at(version: i64, mark: u16, at: Time) -> Self {
        let versions = [Version { number: version, first: 0, at }].into();
        Self { mark: mark & ((1 << MARK_BITS) - 1), versions, ..Self::default() }
    }

    /// The epoch of the versions.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Sets the epoch of the versions.
    #[must_use]
    pub(crate) fn with_epoch(self, epoch: i64) -> Self {
        Self { epoch, ..self }
    }

    /// Begins an epoch. Positions of another epoch become invalid.
    pub(crate) fn begin_epoch(&mut self, epoch: i64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.drop_versions();
        }
    }

    fn drop_versions(&mut self) {
        self.versions.clear();
        self.mark = (self.mark + 1) & ((1 << MARK_BITS) - 1);
    }

    /// Begins a version: the next changes belong to it. A lower version means that the database lost some: previous
    /// positions become invalid.
    pub(crate) fn begin(&mut self, version: i64, at: Time) {
        let end = self.end();
        if self.versions.back().is_some_and(|last| last.number > version) {
            self.drop_versions();
        }
        if self.versions.back().is_some_and(|last| last.number == version) {
            return;
        }
        // A version without changes is not needed, unless the log begins with it.
        if self.versions.len() > 1 {
            self.versions.pop_back_if(|last| last.first == end);
        }
        let at = self.versions.back().map_or(at, |last| at.max(last.at));
        self.versions.push_back(Version { number: version, first: end, at });
        while self.versions.get(1).is_some_and(|second| second.first < self.first) {
            self.versions.pop_front();
        }
    }

    /// The position of a stream that has read up to `end`. `None` if that is before the versions of this epoch.
    pub(crate) fn position(&self, end: u64) -> Option<i64> {
        // The changes of a version are pushed together, so a stream has read all of them or none.
        let begun = self.versions.partition_point(|version| version.first < end);
        let last = self.versions.get(begun.saturating_sub(1))?;
        let count = end.checked_sub(last.first)?.min(MAX_COUNT);
        let rest = u64::from(self.mark) << COUNT_BITS | count;
        Some((last.number << (MARK_BITS + COUNT_BITS) | rest.cast_signed()) + 1)
    }

    /// The version of a position.
    pub(crate) fn version_of(position: i64) -> i64 {
        position.saturating_sub(1) >> (MARK_BITS + COUNT_BITS)
    }

    /// Whether a position belongs to this log.
    pub(crate) fn is_own(&self, position: i64) -> bool {
        let rest = position.saturating_sub(1).cast_unsigned() >> COUNT_BITS;
        rest & ((1 << MARK_BITS) - 1) == u64::from(self.mark)
    }

    /// The number of the change from which a stream with this position continues. `None` if it needs a full map.
    pub(crate) fn find(&self, position: i64, now: Time) -> Option<u64> {
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
        // The other server may not have known all connections of its time.
        let early = version.at.before(LAG);
        let begun = self.versions.partition_point(|version| version.at <= early);
        self.versions.get(begun.saturating_sub(1)).map(|version| version.first)
    }

    /// Appends a change. Returns the oldest change if the log is full and forgets it.
    pub(crate) fn push(&mut self, change: Change) -> Option<Change> {
        self.changes.push_back(change);
        if self.changes.len() <= MAX_CHANGES {
            return None;
        }
        self.first += 1;
        self.changes.pop_front()
    }

    /// The number of the next change.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// The changes from `number` up to `end`. `None` if the log has forgotten some of them.
    pub(crate) fn between(&self, number: u64, end: u64) -> Option<impl Iterator<Item = Change>> {
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
    fn a_stream_can_continue_until_the_log_forgets_its_next_change() {
        let mut log = Log::default();
        assert_eq!(log.between(0, log.end()).unwrap().count(), 0);
        log.push(change(0));
        log.push(change(1));
        assert_eq!(log.between(1, log.end()).unwrap().collect::<Vec<_>>(), [change(1)]);
        log.push(change(2));
        assert_eq!(log.between(1, 2).unwrap().collect::<Vec<_>>(), [change(1)]);
        let forgotten: Vec<Change> =
            (3..=(MAX_CHANGES as u32)).filter_map(|at| log.push(change(at))).collect();
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
        // The other log has a change of a connection, which belongs to no version.
        other.push(change(9));
        for end in 0..=own.end() {
            assert_eq!(own.find(own.position(end).unwrap(), minute(60)), Some(end));
        }
        assert_eq!(Log::version_of(own.position(2).unwrap()), 9);
        assert_eq!(
            other.find(own.position(2).unwrap(), minute(60)),
            Some(0),
            "a slightly earlier position"
        );
        assert_eq!(other.find(own.position(own.end()).unwrap(), minute(60)), Some(2));
        // A new log may lack nodes that disconnected before it began.
        let new = Log::starting_at(9, 3, minute(59));
        assert_eq!(new.find(own.position(2).unwrap(), minute(59)), None);
        assert_eq!(new.find(own.position(2).unwrap(), minute(60)), Some(0));
        assert_eq!(new.find(own.position(own.end()).unwrap(), minute(60)), None, "it is behind");
        assert_eq!(
            new.find(own.position(0).unwrap(), minute(60)),
            None,
            "the position is before the log"
        );
        for wrong in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(own.find(wrong, minute(60)), None);
        }
    }

    #[test]
    fn a_position_from_before_lost_versions_is_invalid_after_them() {
        let minute = |number: u64| Time(number * 60_000);
        let mut log = Log::starting_at(7, 1, minute(0));
        for version in 8..12 {
            log.begin(version, minute(version.cast_unsigned()));
            log.push(change(0));
        }
        let position = log.position(log.end()).unwrap();
        log.begin(9, minute(50));
        assert_eq!(log.position(log.end() - 1), None, "that is before the first version");
        log.push(change(7));
        assert_eq!(log.find(position, minute(60)), None, "the version does not exist");
        for version in [10, 11] {
            log.begin(version, minute(51));
            log.push(change(8));
        }
        assert_eq!(log.find(position, minute(50)), None);
        assert_eq!(log.find(position, minute(60)), Some(log.end() - 3), "all since then");
        assert_eq!(log.find(log.position(log.end()).unwrap(), minute(60)), Some(log.end()));
    }
}
