//! Time-based loss detection: data is lost if data that was sent sufficiently later has arrived
//! (RFC 8985).

use std::time::Duration;

use super::{
    rtt::Rtt,
    scoreboard::{Delivered, Scoreboard, SentRange},
    seq::Seq,
};
use crate::time::Time;

/// Recoveries after which a longer reordering window expires (RFC 8985 section 6.2, step 4).
const PERSISTENCE: u8 = 16;
/// Segments acknowledged after a gap that mark the gap as lost on paths that never reordered (RFC
/// 6675).
const DUPLICATES: u32 = 3;
/// The reordering window is a multiple of the minimum round trip time divided by this number.
const QUARTERS: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Rack {
    /// Of the data that arrived, the time and the end of the last sent.
    newest: Option<(Time, Seq)>,
    /// Round trip time of that data.
    rtt: Duration,
    /// Whether reordering was observed on this path.
    reorders: bool,
    /// Additional quarters of the reordering window.
    more: u32,
    /// Recoveries until they expire.
    remembered: u8,
    /// End of the round in which a duplicate was reported last.
    round: Option<Seq>,
    /// Time at which losses must be detected again.
    deadline: Option<Time>,
}

impl Rack {
    /// Time at which losses must be detected again.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Section 6.2, steps 2 and 3.
    pub(super) fn delivered(&mut self, delivered: &Delivered, rtt: &Rtt, now: Time) {
        if delivered.overtaken.is_some() {
            self.reorders = true;
        }
        let Some(range) = delivered.newest else { return };
        let took = now.since(range.sent);
        // The data was sent twice and arrived too early for the second time, so it is the first.
        if range.again && rtt.min().is_some_and(|min| took < min) {
            return;
        }
        self.rtt = took;
        if self.newest.is_none_or(|newest| is_later((range.sent, range.end), newest)) {
            self.newest = Some((range.sent, range.end));
        }
    }

    /// Handles a reported duplicate: once a round trip, it extends the reordering window (section
    /// 6.2, step 4). Data that was needlessly retransmitted was late, so the path reorders.
    /// Otherwise data that is always considered lost too early would never be observed as late.
    pub(super) fn duplicate(&mut self, una: Seq, next: Seq) {
        self.reorders = true;
        if self.round.is_none_or(|round| !una.before(round)) {
            self.round = Some(next);
            self.more += 1;
            self.remembered = PERSISTENCE;
        }
    }

    /// Handles the end of a recovery.
    pub(super) fn recovered(&mut self) {
        self.remembered = self.remembered.saturating_sub(1);
        if self.remembered == 0 {
            self.more = 0;
        }
    }

    /// Marks lost ranges and passes them to `note`. Sets the deadline for ranges that may be lost
    /// later (section 6.2, step 5).
    pub(super) fn detect(
        &mut self,
        board: &mut Scoreboard,
        wait: Duration,
        now: Time,
        mut note: impl FnMut(&SentRange),
    ) {
        self.deadline = None;
        let Some(newest) = self.newest else { return };
        let timeout = self.rtt + wait;
        let mut deadline: Option<Time> = None;
        board.mark_lost(|range: &SentRange| {
            if !is_later(newest, (range.sent, range.end)) {
                return false;
            }
            let due = range.sent + timeout;
            if due > now {
                deadline = Some(deadline.map_or(due, |deadline| deadline.max(due)));
                return false;
            }
            note(range);
            true
        });
        self.deadline = deadline;
    }

    /// The reordering window (section 6.2, step 4).
    pub(super) fn wait(&self, rtt: &Rtt, recovers: bool, sacked: u32, mss: u32) -> Duration {
        let (Some(min), Some(smoothed)) = (rtt.min(), rtt.smoothed()) else {
            return Duration::ZERO;
        };
        if !self.reorders && (recovers || sacked >= DUPLICATES * mss) {
            return Duration::ZERO;
        }
        (min * (1 + self.more) / QUARTERS).min(smoothed)
    }

    /// Clears the deadline.
    pub(super) fn stop(&mut self) {
        self.deadline = None;
    }
}

fn is_later(a: (Time, Seq), b: (Time, Seq)) -> bool {
    a.0 > b.0 || a.0 == b.0 && a.1.after(b.1)
}
