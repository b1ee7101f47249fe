//! Timers of nodes and registrations.

use std::collections::{BTreeMap, BTreeSet};

use crate::{object::NodeId, time::Time};

/// The kind and the node of a timer. When a timer is due, its reason may no longer apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A node without a stream goes offline.
    Offline(NodeId),
    /// An ephemeral node without a stream is removed.
    Ephemeral(NodeId),
    /// A node key expires.
    Expiry(NodeId),
    /// A node without endpoints loses its previous ones.
    Endpoints(NodeId),
    /// A pending registration is removed.
    Registration(String),
    /// The stored last-seen times of connected nodes are renewed.
    Seen,
}

/// All timers. Each has one time, so a node has at most four.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Time, Timer)>,
    times: BTreeMap<Timer, Time>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub(crate) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(before) = self.times.insert(timer.clone(), at) {
            self.due.remove(&(before, timer.clone()));
        }
        self.due.insert((at, timer));
    }

    /// Sets a timer, unless it is due earlier.
    pub(crate) fn set_at_latest(&mut self, timer: Timer, at: Time) {
        if self.times.get(&timer).is_none_or(|before| *before > at) {
            self.set(timer, at);
        }
    }

    /// Removes a timer.
    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.times.remove(&timer) {
            self.due.remove(&(at, timer));
        }
    }

    /// Removes all timers of a node.
    pub(crate) fn clear_node(&mut self, id: NodeId) {
        for timer in [Timer::Offline, Timer::Ephemeral, Timer::Expiry, Timer::Endpoints] {
            self.clear(timer(id));
        }
    }

    /// The time of the next timer.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns a due timer.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.times.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_set_again_is_due_at_its_last_time_only() {
        let (mut timers, node) = (Timers::default(), NodeId(1));
        for at in 1..1000 {
            timers.set(Timer::Expiry(node), Time(at));
            timers.set(Timer::Offline(node), Time(2 * at));
        }
        assert_eq!((timers.due.len(), timers.times.len(), timers.next()), (2, 2, Some(Time(999))));
        assert_eq!(timers.take_due(Time(998)), None);
        assert_eq!(timers.take_due(Time(999)), Some(Timer::Expiry(node)));
        timers.set_at_latest(Timer::Offline(node), Time(1000));
        timers.set_at_latest(Timer::Offline(node), Time(1001));
        assert_eq!(timers.next(), Some(Time(1000)));
        timers.set(Timer::Endpoints(NodeId(2)), Time(5));
        timers.clear_node(node);
        assert_eq!(timers.take_due(Time(9999)), Some(Timer::Endpoints(NodeId(2))));
        assert_eq!((timers.take_due(Time(9999)), timers.times.len()), (None, 0));
    }
}
