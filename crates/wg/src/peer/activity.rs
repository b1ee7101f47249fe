//! Marks that the data path leaves and the control half reads: the timers that
//! follow traffic (paper 6.2, 6.5; kernel `timers.c`).
//!
//! Marking costs the data path an atomic load or two a batch. Only where a mark
//! brings a deadline nearer than the check that is already planned does it have
//! to tell the control half.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use super::mark::Mark;
use crate::{
    constants::{KEEPALIVE_TIMEOUT, REKEY_TIMEOUT, STALE_AFTER},
    time::Time,
};

/// No check is planned.
const UNPLANNED: u64 = u64::MAX;

/// How long sent data may stay unanswered before a new handshake.
const UNANSWERED_TIMEOUT: Duration =
    Duration::from_secs(KEEPALIVE_TIMEOUT.as_secs() + REKEY_TIMEOUT.as_secs());

#[derive(Debug)]
pub(crate) struct Activity {
    /// When the first data was sent since anything authentic was received.
    unanswered_since: Mark,
    /// When a keepalive is due, since data was received and nothing sent.
    keepalive_due: Mark,
    /// Data was received while a keepalive was due already.
    another_keepalive: AtomicBool,
    /// The last authenticated packet of either direction.
    last_traversal: Mark,
    /// Before this, the data path asks for no handshake.
    handshake_not_before: AtomicU64,
    /// The data path would have asked for one meanwhile.
    asked: AtomicBool,
    /// A receiving initiator asked for a handshake before its session dies.
    last_minute_handshake: AtomicBool,
    /// The earliest deadline the control half knows of.
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
            asked: AtomicBool::new(false),
            last_minute_handshake: AtomicBool::new(false),
            planned: AtomicU64::new(UNPLANNED),
        }
    }
}

/// The marks of the data path. Each tells whether control must plan anew.
impl Activity {
    /// Something authenticated was sent. Where it is `watched`, it is to be told early that
    /// nothing comes back.
    #[must_use]
    pub fn sent(&self, data: bool, watched: bool, now: Time) -> bool {
        self.keepalive_due.clear();
        self.last_traversal.set(now);
        let timeout = if watched { STALE_AFTER } else { UNANSWERED_TIMEOUT };
        data && self.unanswered_since.arm(now) && self.plan(now + timeout)
    }

    /// Something authenticated was received.
    #[must_use]
    pub fn received(&self, data: bool, now: Time) -> bool {
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

    /// Whether control must plan anew for a deadline.
    pub fn plan(&self, deadline: Time) -> bool {
        deadline.as_nanos() < self.planned.load(Ordering::SeqCst)
    }

    /// Whether a handshake may be asked for. One that may not be, because one is
    /// on its way, is noted.
    pub fn may_ask_for_handshake(&self, now: Time) -> bool {
        let may = self.handshake_not_before.load(Ordering::Relaxed) <= now.as_nanos();
        if !may && !self.asked.load(Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
        }
        may
    }

    /// Whether the one early handshake of a receiving initiator is still to be
    /// asked for; it counts as asked.
    pub fn take_last_minute(&self) -> bool {
        !self.last_minute_handshake.load(Ordering::Relaxed)
            && !self.last_minute_handshake.swap(true, Ordering::Relaxed)
    }
}

/// The control half's side.
impl Activity {
    pub fn hold_handshakes(&self, until: Option<Time>) {
        let nanos = until.map_or(0, Time::as_nanos);
        self.handshake_not_before.store(nanos, Ordering::Relaxed);
    }

    /// Whether the data path would have asked for a handshake since the last
    /// time: there still is something to send.
    pub fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    pub fn handshake_completed(&self) {
        self.last_minute_handshake.store(false, Ordering::Relaxed);
    }

    /// When unanswered data calls for a new handshake.
    pub fn unanswered_deadline(&self) -> Option<Time> {
        self.unanswered_since.get().map(|since| since + UNANSWERED_TIMEOUT)
    }

    /// When the peer is stale, if nothing comes before.
    pub fn stale_deadline(&self) -> Option<Time> {
        self.unanswered_since.get().map(|since| since + STALE_AFTER)
    }

    pub fn take_unanswered(&self, now: Time) -> bool {
        let due = self.unanswered_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.unanswered_since.clear();
        }
        due
    }

    pub fn keepalive_deadline(&self) -> Option<Time> {
        self.keepalive_due.get()
    }

    /// Whether a keepalive is due. Where data came since it was armed, the next
    /// one is armed.
    pub fn take_keepalive(&self, now: Time) -> bool {
        let due = self.keepalive_deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.keepalive_due.clear();
            if self.another_keepalive.swap(false, Ordering::Relaxed) {
                self.keepalive_due.arm(now + KEEPALIVE_TIMEOUT);
            }
        }
        due
    }

    /// Lets the interval of persistent keepalives begin now.
    pub fn restart_interval(&self, now: Time) {
        self.last_traversal.set(now);
    }

    /// Whether data passed, and something is still to follow from that.
    pub fn has_data(&self) -> bool {
        self.unanswered_since.get().is_some() || self.keepalive_due.get().is_some()
    }

    pub fn last_traversal(&self) -> Option<Time> {
        self.last_traversal.get()
    }

    /// Plans the next check no later than `deadline` says, which reads the marks.
    /// A mark set meanwhile is either read by it, or finds no check planned and
    /// tells.
    pub fn replan(&self, deadline: impl FnOnce() -> Option<Time>) -> Option<Time> {
        self.planned.store(UNPLANNED, Ordering::SeqCst);
        let deadline = deadline();
        if let Some(deadline) = deadline {
            self.planned.store(deadline.as_nanos(), Ordering::SeqCst);
        }
        deadline
    }

    /// Forgets everything but what was counted: the interface went down.
    pub fn reset(&self) {
        for mark in [&self.unanswered_since, &self.keepalive_due, &self.last_traversal] {
            mark.clear();
        }
        self.hold_handshakes(None);
        self.another_keepalive.store(false, Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
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
    fn a_keepalive_is_due_again_where_more_data_came_before_it_was_and_it_was_not_sent() {
        let activity = received_data_at(&[0, 3]);
        let due = start() + KEEPALIVE_TIMEOUT;
        assert!(!activity.take_keepalive(start() + SECOND * 9));
        assert!(activity.take_keepalive(due));
        assert_eq!(activity.keepalive_deadline(), Some(due + KEEPALIVE_TIMEOUT));
        assert!(activity.take_keepalive(due + KEEPALIVE_TIMEOUT));
        assert_eq!(activity.keepalive_deadline(), None, "once, not for ever");
    }

    #[test]
    fn one_packet_of_data_makes_one_keepalive_due() {
        let activity = received_data_at(&[0]);
        assert!(activity.take_keepalive(start() + KEEPALIVE_TIMEOUT));
        assert_eq!(activity.keepalive_deadline(), None);
    }

    #[test]
    fn a_further_keepalive_is_not_due_where_one_was_sent() {
        let activity = received_data_at(&[0, 3]);
        let due = start() + KEEPALIVE_TIMEOUT;
        assert!(activity.take_keepalive(due));
        let _ = activity.sent(false, false, due);
        assert_eq!(activity.keepalive_deadline(), None);
    }
}
