//! Marks for the timers that follow traffic (paper 6.2, 6.5; kernel `timers.c`). The data path sets
//! them and the control half reads them.
//!
//! Setting a mark costs the data path one or two atomic loads a batch. It notifies the control half
//! only if the new deadline is earlier than the scheduled check.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    constants::{KEEPALIVE_TIMEOUT, REKEY_TIMEOUT, STALE_AFTER},
    mark::Mark,
    time::Time,
};

/// No check is scheduled.
const UNPLANNED: u64 = u64::MAX;

/// Time without an answer to sent data after which a new handshake starts.
const UNANSWERED_TIMEOUT: Duration =
    Duration::from_secs(KEEPALIVE_TIMEOUT.as_secs() + REKEY_TIMEOUT.as_secs());

#[derive(Debug)]
pub(crate) struct Activity {
    /// Time of the first data sent since the last authentic packet was received.
    unanswered_since: Mark,
    /// Time when a keepalive is due, because data was received and nothing was sent since.
    keepalive_due: Mark,
    /// Data was received while a keepalive was already due.
    another_keepalive: AtomicBool,
    /// Time of the last authentic packet in either direction.
    last_traversal: Mark,
    /// The data path requests no handshake before this time.
    handshake_not_before: AtomicU64,
    /// The data path wanted to request a handshake before that time.
    requested: AtomicBool,
    /// A receiving initiator requested the handshake that replaces its session before it dies.
    last_minute_handshake: AtomicBool,
    /// The earliest deadline that the control half has scheduled.
    planned: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            unanswered_since: Mark::default(),
            keepalive_due: Mark::default(),
            another_keepalive: AtomicBool::new(false),
            last_traversal: Mark::default(),
            handshake_not_before: AtomicU64::new(0),
            requested: AtomicBool::new(false),
            last_minute_handshake: AtomicBool::new(false),
            planned: AtomicU64::new(UNPLANNED),
        }
    }
}

/// The data path's side. A returned `true` means that the control half must replan.
impl Activity {
    /// Records a sent packet. With `watched`, a subscriber wants an early notice if nothing is
    /// received.
    #[must_use]
    pub(crate) fn sent(&self, data: bool, watched: bool, now: Time) -> bool {
        self.keepalive_due.clear();
        self.last_traversal.set(now);
        let timeout = if watched { STALE_AFTER } else { UNANSWERED_TIMEOUT };
        data && self.unanswered_since.arm(now) && self.plan(now + timeout)
    }

    /// Records an authentic received packet.
    #[must_use]
    pub(crate) fn received(&self, data: bool, now: Time) -> bool {
        self.unanswered_since.clear();
        self.last_traversal.set(now);
        if !data {
            return false;
        }
        let due = now + KEEPALIVE_TIMEOUT;
        if self.keepalive_due.arm(due) {
            return self.plan(due);
        }
        if !self.another_keepalive.load(Ordering::Relaxed) {
            self.another_keepalive.store(true, Ordering::Relaxed);
        }
        false
    }

    /// Whether the control half must replan for this deadline.
    pub(crate) fn plan(&self, deadline: Time) -> bool {
        deadline.as_nanos() < self.planned.load(Ordering::SeqCst)
    }

    /// Whether a handshake may be requested. A refused request, because a handshake is in progress,
    /// is recorded.
    pub(crate) fn can_request_handshake(&self, now: Time) -> bool {
        let may = self.handshake_not_before.load(Ordering::Relaxed) <= now.as_nanos();
        if !may && !self.requested.load(Ordering::Relaxed) {
            self.requested.store(true, Ordering::Relaxed);
        }
        may
    }

    /// Whether the early handshake of a receiving initiator was not yet requested. Marks it as
    /// requested.
    pub(crate) fn take_last_minute(&self) -> bool {
        !self.last_minute_handshake.load(Ordering::Relaxed)
            && !self.last_minute_handshake.swap(true, Ordering::Relaxed)
    }
}

/// The control half's side.
impl Activity {
    pub(crate) fn block_handshakes_until(&self, until: Option<Time>) {
        let nanos = until.map_or(0, Time::as_nanos);
        self.handshake_not_before.store(nanos, Ordering::Relaxed);
    }

    /// Whether the data path wanted a handshake since the last call, which means that there is
    /// still data to send.
    pub(crate) fn take_requested(&self) -> bool {
        self.requested.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn handshake_completed(&self) {
        self.last_minute_handshake.store(false, Ordering::Relaxed);
    }

    /// Time when unanswered data causes a new handshake.
    pub(crate) fn unanswered_deadline(&self) -> Option<Time> {
        self.unanswered_since.get().map(|since| since + UNANSWERED_TIMEOUT)
    }

    /// Time when the peer becomes stale if nothing is received before.
    pub(crate) fn stale_deadline(&self) -> Option<Time> {
        self.unanswered_since.get().map(|since| since + STALE_AFTER)
    }

    pub(crate) fn take_unanswered(&self, now: Time) -> bool {
        let due = self.unanswered_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.unanswered_since.clear();
        }
        due
    }

    pub(crate) fn keepalive_deadline(&self) -> Option<Time> {
        self.keepalive_due.get()
    }

    /// Whether a keepalive is due. If data was received since it was armed, the next one is armed.
    pub(crate) fn take_keepalive(&self, now: Time) -> bool {
        let due = self.keepalive_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.keepalive_due.clear();
            if self.another_keepalive.swap(false, Ordering::Relaxed) {
                self.keepalive_due.arm(now + KEEPALIVE_TIMEOUT);
            }
        }
        due
    }

    /// Restarts the interval of persistent keepalives now.
    pub(crate) fn restart_interval(&self, now: Time) {
        self.last_traversal.set(now);
    }

    /// Whether data was sent or received recently, so that a timer depends on it.
    pub(crate) fn has_data(&self) -> bool {
        self.unanswered_since.get().is_some() || self.keepalive_due.get().is_some()
    }

    pub(crate) fn last_traversal(&self) -> Option<Time> {
        self.last_traversal.get()
    }

    /// Schedules the next check at the time that `deadline` derives from the marks. A mark that is
    /// set meanwhile is either seen by `deadline`, or finds no check scheduled and notifies.
    pub(crate) fn replan(&self, deadline: impl FnOnce() -> Option<Time>) -> Option<Time> {
        self.planned.store(UNPLANNED, Ordering::SeqCst);
        let deadline = deadline();
        if let Some(deadline) = deadline {
            self.planned.store(deadline.as_nanos(), Ordering::SeqCst);
        }
        deadline
    }

    /// Clears all marks, because the interface went down. Counters remain.
    pub(crate) fn reset(&self) {
        for mark in [&self.unanswered_since, &self.keepalive_due, &self.last_traversal] {
            mark.clear();
        }
        self.block_handshakes_until(None);
        self.another_keepalive.store(false, Ordering::Relaxed);
        self.requested.store(false, Ordering::Relaxed);
        self.last_minute_handshake.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Time {
        Time::from_nanos(1_000_000_000)
    }

    fn received_data_at(seconds: &[u32]) -> Activity {
        let activity = Activity::default();
        for &second in seconds {
            let _ = activity.received(true, start() + SECOND * second);
        }
        activity
    }

    #[test]
    fn more_data_before_an_unsent_keepalive_makes_a_second_one_due() {
        let activity = received_data_at(&[0, 3]);
        let due = start() + KEEPALIVE_TIMEOUT;
        assert!(!activity.take_keepalive(start() + SECOND * 9));
        assert!(activity.take_keepalive(due));
        assert_eq!(activity.keepalive_deadline(), Some(due + KEEPALIVE_TIMEOUT));
        assert!(activity.take_keepalive(due + KEEPALIVE_TIMEOUT));
        assert_eq!(activity.keepalive_deadline(), None, "only once");
    }

    #[test]
    fn one_data_packet_makes_one_keepalive_due() {
        let activity = received_data_at(&[0]);
        assert!(activity.take_keepalive(start() + KEEPALIVE_TIMEOUT));
        assert_eq!(activity.keepalive_deadline(), None);
    }

    #[test]
    fn after_a_sent_keepalive_no_second_one_is_due() {
        let activity = received_data_at(&[0, 3]);
        let due = start() + KEEPALIVE_TIMEOUT;
        assert!(activity.take_keepalive(due));
        let _ = activity.sent(false, false, due);
        assert_eq!(activity.keepalive_deadline(), None);
    }
}
