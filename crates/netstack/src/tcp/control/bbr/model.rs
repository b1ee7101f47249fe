//! What is known of the path.

use super::{Bbr, Phase, UNBOUNDED};
use crate::{
    tcp::{
        control::{Loss, News},
        delivery::Sample,
        seq::Seq,
    },
    time::Time,
};

/// What is left of a bound after losses ("BBR.Beta").
pub const BETA: f64 = 0.7;

/// Round trips by what arrives ("Tracking Packet-Timed Round Trips").
#[derive(Debug, Default)]
pub struct Round {
    next: Seq,
    /// How many there were, modulo 2^32.
    pub count: u32,
    /// Whether one starts with this acknowledgement.
    pub starts: bool,
}

impl Round {
    pub fn handle(&mut self, prior: Seq, arrived: Seq) {
        self.starts = !prior.before(self.next);
        if self.starts {
            self.begin(arrived);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// One begins with what is sent next.
    pub fn begin(&mut self, arrived: Seq) {
        self.next = arrived;
    }

    /// What had arrived when this one began.
    pub fn next(&self) -> Seq {
        self.next
    }
}

/// The greatest rate of this cycle of phases and of the one before ("BBR.max_bw Max
/// Filter").
#[derive(Debug, Default)]
pub struct MaxRate {
    before: f64,
    now: f64,
}

impl MaxRate {
    pub fn max(&self) -> f64 {
        self.before.max(self.now)
    }

    pub fn handle(&mut self, sample: &Sample) {
        // What an application holds back says nothing, unless it is more all the same.
        if sample.rate >= self.max() || !sample.limited {
            self.now = self.now.max(sample.rate);
        }
    }

    /// Another cycle begins.
    pub fn advance(&mut self) {
        if self.now > 0.0 {
            (self.before, self.now) = (self.now, 0.0);
        }
    }
}

/// Bounds until the next search, from losses outside of searches.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    /// Bytes a second.
    pub rate: f64,
    pub flying: u32,
}

impl Short {
    pub const NONE: Self = Self { rate: f64::INFINITY, flying: UNBOUNDED };

    pub fn max(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), flying: self.flying.max(other.flying) }
    }
}

impl Default for Short {
    fn default() -> Self {
        Self::NONE
    }
}

/// What was delivered in the last round trip, and whether something was lost in it.
#[derive(Debug, Default)]
pub struct Latest {
    rate: f64,
    arrived: u32,
    /// What had arrived when this round trip began.
    begin: Seq,
    /// Whether one ends with this acknowledgement.
    pub starts: bool,
    lossy: bool,
    /// Stretches that were lost apart from each other, and the end of the last.
    losses: (u8, Seq),
}

impl Latest {
    pub fn note_lost(&mut self, loss: &Loss<'_>) {
        self.note_repaired(loss.arrived);
        if self.losses.0 == 0 || self.losses.1 != loss.stretch.start {
            self.losses.0 = self.losses.0.saturating_add(1);
        }
        self.losses.1 = loss.stretch.end;
    }

    /// Something was lost.
    pub fn note_repaired(&mut self, arrived: Seq) {
        if !self.lossy {
            self.begin = arrived;
        }
        self.lossy = true;
    }

    pub fn forget_loss(&mut self) {
        self.lossy = false;
    }

    /// Stretches that were lost in this round trip.
    pub fn losses(&self) -> u8 {
        self.losses.0
    }

    /// Bytes that arrived in it.
    pub fn arrived(&self) -> u32 {
        self.arrived
    }

    pub fn handle(&mut self, sample: &Sample, arrived: Seq) {
        self.rate = self.rate.max(sample.rate);
        self.arrived = self.arrived.max(sample.arrived);
        self.starts = !sample.prior.before(self.begin);
        if self.starts {
            self.begin = arrived;
        }
    }

    /// All have seen this acknowledgement.
    pub fn advance(&mut self, sample: &Sample) {
        if self.starts {
            (self.rate, self.arrived) = (sample.rate, sample.arrived);
            self.lossy = false;
            self.losses.0 = 0;
        }
    }

    /// "ResetCongestionSignals".
    pub fn forget(&mut self) {
        (self.rate, self.arrived, self.lossy) = (0.0, 0, false);
    }
}

/// How much more arrives at once than the rate lets expect ("BBR.extra_acked").
#[derive(Debug)]
pub struct Aggregation {
    since: Time,
    arrived: f64,
    /// The most in these rounds, and in those before.
    most: [u32; 2],
    rounds: u8,
}

/// Rounds of each of both halves of the filter; together they are the draft's ten.
const ROUNDS: u8 = 5;

impl Aggregation {
    pub fn new(now: Time) -> Self {
        Self { since: now, arrived: 0.0, most: [0; 2], rounds: 0 }
    }

    pub fn restart(&mut self, now: Time) {
        (self.since, self.arrived) = (now, 0.0);
    }

    pub fn extra(&self) -> u32 {
        self.most[0].max(self.most[1])
    }

    fn note_round(&mut self, rounds: u8) {
        self.rounds += 1;
        if self.rounds >= rounds {
            self.rounds = 0;
            self.most = [0, self.most[0]];
        }
    }

    fn handle(&mut self, bytes: u32, rate: f64, window: u32, now: Time) {
        let mut expected = rate * now.since(self.since).as_secs_f64();
        if self.arrived <= expected {
            self.restart(now);
            expected = 0.0;
        }
        self.arrived += f64::from(bytes);
        let extra = ((self.arrived - expected) as u32).min(window);
        self.most[0] = self.most[0].max(extra);
    }
}

impl Bbr {
    pub(super) fn aggregate(&mut self, news: &News) {
        if self.round.starts {
            self.aggregation.note_round(if self.full.reached { ROUNDS } else { 1 });
        }
        self.aggregation.handle(news.bytes, self.rate(), self.window, news.now);
    }

    /// Once a round trip: losses that were not found in a search say that the path has
    /// become narrower ("When not Probing for Bandwidth").
    pub(super) fn adapt_to_losses(&mut self) {
        if !self.latest.lossy || self.phase.searches() {
            return;
        }
        let rate = if self.short.rate.is_finite() { self.short.rate } else { self.rate.max() };
        let flying = if self.short.flying == UNBOUNDED { self.window } else { self.short.flying };
        self.short = Short {
            rate: self.latest.rate.max(BETA * rate),
            flying: self.latest.arrived.max((BETA * f64::from(flying)) as u32),
        };
    }

    /// A search has put too much on its way ("Probing for Bandwidth In ProbeBW").
    pub(super) fn handle_too_much(&mut self, flying: u32, limited: bool, arrived: Seq, now: Time) {
        self.probe.was_too_high = true;
        self.probe.samples = false;
        if !limited {
            let least = (BETA * f64::from(self.target())) as u32;
            self.long = flying.max(least);
        }
        if self.phase == Phase::Up {
            self.recovery.ended = Some(Phase::Up);
            self.begin_down(arrived, now);
        }
    }

    /// What is wanted on its way, unless congestion allows less.
    pub(super) fn target(&self) -> u32 {
        self.product(1.0).min(self.window)
    }
}
