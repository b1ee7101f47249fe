//! How much may be in the network, and what of it is lost: the scoreboard, RACK, and
//! the congestion window in and out of recovery (RFC 5681, 6675, 6937, 8985, 9438).

use super::{
    control::Cubic,
    options::Block,
    rack::Rack,
    rtt::Rtt,
    scoreboard::{Delivered, Scoreboard},
    seq::Seq,
};
use crate::time::Time;

/// Acknowledgements of the same byte that say that the next is lost, where the
/// receiver has no selective ones (RFC 5681 section 3.2).
const DUPLICATES: u32 = 3;
/// Bytes of options that a segment has at most (RFC 9293 section 3.1).
const OPTIONS: u32 = 40;

#[derive(Debug)]
pub struct Flight {
    pub board: Scoreboard,
    pub rtt: Rtt,
    cubic: Cubic,
    rack: Rack,
    recovery: Recovery,
    mss: u32,
    /// Whether the window, and nothing else, held something back.
    limited: bool,
    /// What there was before the last recovery, and how many bytes were sent again in it
    /// that were not told to be needless.
    undo: Option<(Before, u32)>,
    /// Acknowledgements of the same byte in a row.
    duplicates: u32,
    /// When something was sent last.
    sent: Time,
}

/// The congestion window's state before a loss.
type Before = (u32, u32, f64);

#[derive(Debug)]
enum Recovery {
    /// Nothing is lost.
    None,
    /// What is lost is sent again, until this is acknowledged.
    Fast { until: Seq, reduction: Reduction },
    /// Everything was taken for lost.
    Timeout { until: Seq },
}

/// Proportional rate reduction: in recovery something is sent for what arrives, in the
/// measure of the new threshold to the old window (RFC 6937).
#[derive(Debug)]
struct Reduction {
    delivered: u64,
    out: u64,
    /// What was on its way at the beginning.
    flight: u64,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Everything before it arrived.
    pub una: Seq,
    /// Whether that is news.
    pub advances: bool,
    /// Whether it is one of RFC 5681's duplicates.
    pub repeats: bool,
    /// Whether the receiver has selective acknowledgements.
    pub selective: bool,
    /// Those, of what was sent.
    pub blocks: &'a [Block],
    /// Of how many bytes it tells that they arrived twice (RFC 2883).
    pub duplicate: u32,
    /// The next byte to be sent for the first time.
    pub next: Seq,
}

impl Flight {
    pub fn new(mss: u32) -> Self {
        Self {
            board: Scoreboard::default(),
            rtt: Rtt::default(),
            cubic: Cubic::new(mss),
            rack: Rack::default(),
            recovery: Recovery::None,
            mss,
            limited: false,
            undo: None,
            duplicates: 0,
            sent: Time::default(),
        }
    }

    /// The congestion window in bytes.
    pub fn window(&self) -> u32 {
        self.cubic.window()
    }

    /// Payload of a segment in bytes.
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// Payload of a segment that is not the last at least, in bytes: with all options.
    fn least(&self) -> u32 {
        self.mss.saturating_sub(OPTIONS).max(1)
    }

    /// How many bytes more may fly.
    pub fn room(&self) -> u32 {
        self.cubic.window().saturating_sub(self.board.flying())
    }

    /// Whether something is taken for lost.
    pub fn recovers(&self) -> bool {
        !matches!(self.recovery, Recovery::None)
    }

    /// When to look again for what is lost.
    pub fn deadline(&self) -> Option<Time> {
        self.rack.deadline()
    }

    /// Segments have another length from now on.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.cubic.set_mss(mss);
    }

    /// Before the first data: the path's window in the segments that were agreed on.
    pub fn begin(&mut self, mss: u32) {
        self.mss = mss;
        self.cubic = Cubic::new(mss);
    }

    /// The window held something back.
    pub fn note_limited(&mut self) {
        self.limited = true;
    }

    /// New bytes were sent.
    pub fn note_sent(&mut self, start: Seq, end: Seq, now: Time) {
        if self.board.is_empty() && now.since(self.sent) > self.rtt.timeout(0) {
            self.cubic.restart();
        }
        self.board.sent(start, end, now);
        self.note_out(end.since(start), now);
    }

    /// Bytes were sent again.
    pub fn note_sent_again(&mut self, start: Seq, end: Seq, now: Time) {
        self.board.sent_again(start, end, now);
        if let Some((_, again)) = &mut self.undo {
            *again = again.saturating_add(end.since(start));
        }
        self.note_out(end.since(start), now);
    }

    fn note_out(&mut self, bytes: u32, now: Time) {
        self.sent = now;
        if let Recovery::Fast { reduction, .. } = &mut self.recovery {
            reduction.out += u64::from(bytes);
        }
    }

    /// Returns how many bytes arrived that were not known to.
    pub fn handle_ack(&mut self, ack: Ack<'_>, now: Time) -> u32 {
        let flew = self.board.flying();
        let mut delivered = Delivered::default();
        self.board.acknowledge(ack.una, &mut delivered);
        for block in ack.blocks {
            self.board.sack(*block, self.least(), &mut delivered);
        }
        if let Some((first, _)) = delivered.once {
            self.rtt.sample(now.since(first));
        }
        if ack.duplicate > 0 {
            self.rack.duplicate(ack.una, ack.next);
            self.undo(ack.duplicate);
        }
        let lost = self.board.lost();
        if ack.selective {
            self.rack.delivered(&delivered, &self.rtt, now);
            self.detect(now);
        } else {
            self.count_duplicates(ack);
        }
        let more_lost = self.board.lost() > lost;
        self.leave_recovery(ack.una);
        self.enter_recovery(ack, flew);
        self.move_window(delivered.bytes, flew, ack.advances && !more_lost, now);
        delivered.bytes
    }

    /// It is time to look for what is lost.
    pub fn handle_deadline(&mut self, next: Seq, now: Time) {
        self.detect(now);
        let una = self.board.iter().next().map_or(next, |first| first.start);
        let ack = Ack {
            una,
            advances: false,
            repeats: false,
            selective: true,
            blocks: &[],
            duplicate: 0,
            next,
        };
        self.enter_recovery(ack, self.board.flying());
        self.move_window(0, 0, false, now);
    }

    /// Nothing was heard for a time-out: everything is taken for lost (RFC 5681
    /// section 3.1, RFC 6298 section 5). `first` says that it is the first in a row.
    pub fn handle_timeout(&mut self, next: Seq, first: bool) {
        self.board.mark_lost(|_| true);
        if self.board.is_reneged() {
            self.board.lose_sacked();
        }
        self.rack.stop();
        self.undo = None;
        if first {
            self.cubic.congested();
        }
        self.cubic.set_window(self.mss);
        self.recovery = Recovery::Timeout { until: next };
    }

    /// A probe repaired a loss at the tail: that was congestion (RFC 8985 section 7.4).
    pub fn note_repaired(&mut self) {
        if !self.recovers() {
            self.cubic.congested();
            self.cubic.set_window(self.cubic.threshold());
        }
    }

    fn detect(&mut self, now: Time) {
        let recovers = self.recovers();
        let wait = self.rack.wait(&self.rtt, recovers, self.board.sacked(), self.mss);
        self.rack.detect(&mut self.board, wait, now);
    }

    /// All that was sent again in a recovery was needless: nothing had been lost, only
    /// late (RFC 3708, as Linux does it).
    fn undo(&mut self, duplicate: u32) {
        let Some((before, again)) = &mut self.undo else { return };
        *again = again.saturating_sub(duplicate);
        if *again == 0 && self.board.lost() == 0 {
            self.cubic.restore(*before);
            self.undo = None;
            self.recovery = Recovery::None;
        }
    }

    /// RFC 6582, for want of selective acknowledgements.
    fn count_duplicates(&mut self, ack: Ack<'_>) {
        if ack.advances {
            self.duplicates = 0;
            if self.recovers() && self.board.lost() == 0 {
                self.board.lose_first(self.mss);
            }
        } else if ack.repeats {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && !self.recovers() {
                self.board.lose_first(self.mss);
            }
        }
    }

    fn enter_recovery(&mut self, ack: Ack<'_>, flew: u32) {
        if self.board.lost() == 0 || self.recovers() {
            return;
        }
        self.undo = Some((self.cubic.remember(), 0));
        self.cubic.congested();
        let flight = u64::from(flew.max(self.mss));
        let reduction = Reduction { delivered: 0, out: 0, flight };
        self.recovery = Recovery::Fast { until: ack.next, reduction };
    }

    fn leave_recovery(&mut self, una: Seq) {
        match self.recovery {
            Recovery::Fast { until, .. } if !una.before(until) => {
                self.cubic.set_window(self.cubic.threshold());
            }
            Recovery::Timeout { until } if !una.before(until) => {}
            _ => return,
        }
        self.recovery = Recovery::None;
        self.duplicates = 0;
        self.rack.recovered();
    }

    fn move_window(&mut self, delivered: u32, flew: u32, safe: bool, now: Time) {
        if let Recovery::Fast { reduction, .. } = &mut self.recovery {
            let flying = self.board.flying();
            let threshold = self.cubic.threshold();
            let more = reduction.allow(delivered, (flying, threshold), safe, self.mss);
            self.cubic.set_window(flying + more);
            return;
        }
        // What was not used says nothing of what the path can carry (RFC 9438 section
        // 5.8).
        let used = self.limited
            || self.cubic.is_slow_start() && self.cubic.window() < flew.saturating_mul(2);
        if delivered > 0 && used {
            let rtt = self.rtt.smoothed().unwrap_or_default();
            self.cubic.grow(delivered, now, rtt);
            self.limited = false;
        }
    }
}

impl Reduction {
    /// How much may be sent now.
    fn allow(
        &mut self,
        delivered: u32,
        (flying, threshold): (u32, u32),
        safe: bool,
        mss: u32,
    ) -> u32 {
        self.delivered += u64::from(delivered);
        let allowed = if flying > threshold {
            let due = (self.delivered * u64::from(threshold)).div_ceil(self.flight);
            due.saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(delivered.into());
            let owed = if safe { owed + u64::from(mss) } else { owed };
            owed.min(u64::from(threshold - flying))
        };
        // The first loss is sent again whatever the measure says.
        let least = if self.out == 0 { mss } else { 0 };
        u32::try_from(allowed).unwrap_or(u32::MAX / 4).max(least)
    }
}
