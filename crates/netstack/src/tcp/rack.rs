//! Loss by time: what was sent well before something that arrived is lost (RFC 8985).

use std::time::Duration;

use super::{
    rtt::Rtt,
    scoreboard::{Delivered, Scoreboard, Stretch},
    seq::Seq,
};
use crate::time::Time;

/// Recoveries after which what duplicates taught is forgotten (RFC 8985 section 6.2,
/// step 4).
const PERSISTENCE: u8 = 16;
/// Segments that arrived behind a gap from which on a network that never reordered is
/// not waited for (RFC 6675).
const DUPLICATES: u32 = 3;
/// Reordering of which one waits, in quarters of the least round trip time.
const QUARTERS: u32 = 4;

#[derive(Debug, Default)]
pub struct Rack {
    /// Of what arrived, what was sent last: when, and its end.
    newest: Option<(Time, Seq)>,
    /// How long that took.
    rtt: Duration,
    /// Whether this path was seen to reorder.
    reorders: bool,
    /// Quarters of a round trip time to wait beyond the first.
    more: u32,
    /// Recoveries until that is forgotten.
    remembered: u8,
    /// The round in which a duplicate was told of.
    round: Option<Seq>,
    /// When it is time to look again.
    deadline: Option<Time>,
}

impl Rack {
    /// When it is time to look again for what is lost.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Section 6.2, steps 2 and 3.
    pub fn delivered(&mut self, delivered: &Delivered, rtt: &Rtt, now: Time) {
        if delivered.overtaken.is_some() {
            self.reorders = true;
        }
        let Some(stretch) = delivered.newest else { return };
        let took = now.since(stretch.sent);
        // What was sent twice and arrived too soon is the first of the two.
        if stretch.again && rtt.min().is_some_and(|min| took < min) {
            return;
        }
        self.rtt = took;
        if self.newest.is_none_or(|newest| is_later((stretch.sent, stretch.end), newest)) {
            self.newest = Some((stretch.sent, stretch.end));
        }
    }

    /// The receiver told of a duplicate: once a round trip, wait longer (section 6.2,
    /// step 4). What was sent again needlessly was late, so this path reorders; else
    /// what is always taken for lost too early would never be seen to be late.
    pub fn duplicate(&mut self, una: Seq, next: Seq) {
        self.reorders = true;
        if self.round.is_none_or(|round| !una.before(round)) {
            self.round = Some(next);
            self.more += 1;
            self.remembered = PERSISTENCE;
        }
    }

    /// A recovery came to its end.
    pub fn recovered(&mut self) {
        self.remembered = self.remembered.saturating_sub(1);
        if self.remembered == 0 {
            self.more = 0;
        }
    }

    /// Marks what is lost and gives it to `note`, and sets the deadline for what may be
    /// (section 6.2, step 5).
    pub fn detect(
        &mut self,
        board: &mut Scoreboard,
        wait: Duration,
        now: Time,
        mut note: impl FnMut(&Stretch),
    ) {
        self.deadline = None;
        let Some(newest) = self.newest else { return };
        let patience = self.rtt + wait;
        let mut deadline: Option<Time> = None;
        board.mark_lost(|stretch: &Stretch| {
            if !is_later(newest, (stretch.sent, stretch.end)) {
                return false;
            }
            let due = stretch.sent + patience;
            if due > now {
                deadline = Some(deadline.map_or(due, |deadline| deadline.max(due)));
                return false;
            }
            note(stretch);
            true
        });
        self.deadline = deadline;
    }

    /// How long to wait for what may be reordered (section 6.2, step 4).
    pub fn wait(&self, rtt: &Rtt, recovers: bool, sacked: u32, mss: u32) -> Duration {
        let (Some(min), Some(smoothed)) = (rtt.min(), rtt.smoothed()) else {
            return Duration::ZERO;
        };
        if !self.reorders && (recovers || sacked >= DUPLICATES * mss) {
            return Duration::ZERO;
        }
        (min * (1 + self.more) / QUARTERS).min(smoothed)
    }

    /// Nothing is looked for any more.
    pub fn stop(&mut self) {
        self.deadline = None;
    }
}

fn is_later(a: (Time, Seq), b: (Time, Seq)) -> bool {
    a.0 > b.0 || a.0 == b.0 && a.1.behind(b.1)
}
