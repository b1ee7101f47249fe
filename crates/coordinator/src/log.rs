//! What changed, in order. Whoever follows the network reads on from where it was; nothing is made
//! for each follower when something changes.

use std::collections::VecDeque;

use crate::object::NodeId;

/// The most changes that are kept. Who is further behind begins anew.
const KEPT: usize = 1 << 16;

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
    pub const HOME: Self = Self(1 << 3);
    /// The key of its disco messages.
    pub const DISCO: Self = Self(1 << 4);
    /// What it speaks.
    pub const VERSION: Self = Self(1 << 5);
    /// What others have to be told the whole node for, and the node itself knows.
    pub const SHOWN: Self = Self(1 << 6);
    /// That it is gone.
    pub const GONE: Self = Self(1 << 7);
    /// Whom it may reach, or who may reach it.
    pub const ACCESS: Self = Self(1 << 8);

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
        place: u32,
        /// What of it.
        parts: Parts,
    },
    /// Who may reach whom.
    Policy,
}

/// The changes.
#[derive(Clone, Debug, Default)]
pub struct Log {
    changes: VecDeque<Change>,
    /// The number of the first that is kept.
    first: u64,
}

impl Log {
    /// One whose first change will have this number.
    pub fn beginning_at(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    /// Notes one. If that makes it forget another, returns it.
    pub fn push(&mut self, change: Change) -> Option<Change> {
        self.changes.push_back(change);
        if self.changes.len() <= KEPT {
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
        let place = |number: u64| {
            let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
            Some(place.min(self.changes.len()))
        };
        let begin = place(number)?;
        Some(self.changes.range(begin..place(end)?.max(begin)).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_reads_on_until_what_it_missed_is_forgotten() {
        let mut log = Log::default();
        let change = |place| Change::Node { id: NodeId(1), place, parts: Parts::WHOLE };
        assert_eq!(log.between(0, log.end()).unwrap().count(), 0);
        log.push(change(0));
        log.push(change(1));
        assert_eq!(log.between(1, log.end()).unwrap().collect::<Vec<_>>(), [change(1)]);
        log.push(change(2));
        assert_eq!(log.between(1, 2).unwrap().collect::<Vec<_>>(), [change(1)]);
        let forgotten: Vec<Change> =
            (3..KEPT as u32 + 1).filter_map(|at| log.push(change(at))).collect();
        assert_eq!(forgotten, [change(0)]);
        assert!(log.between(0, log.end()).is_none());
        assert_eq!(log.between(1, log.end()).unwrap().count(), KEPT);
        assert_eq!(log.between(log.end(), log.end()).unwrap().count(), 0);
    }
}
