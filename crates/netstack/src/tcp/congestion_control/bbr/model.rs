//! The model of the path.

use super::{Bbr, Phase, UNBOUNDED};
use crate::{
    tcp::{
        congestion_control::{AckEvent, Loss},
        delivery::Sample,
        seq::Seq,
    },
    time::Time,
};

/// Factor of a limit after losses ("BBR.Beta").
pub(super) const BETA: f64 = 0.7;

/// Counts round trips by acknowledged data ("Tracking Packet-Timed Round Trips").
#[derive(Debug, Default)]
pub(super) struct Round {
    next: Seq,
    /// Number of rounds, modulo 2^32.
    pub count: u32,
    /// Whether a round starts with this acknowledgement.
    pub starts: bool,
}

impl Round {
    pub(super) fn handle(&mut self, prior: Seq, arrived: Seq) {
        self.starts = !prior.before(self.next);
        if self.starts {
            self.begin(arrived);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Starts a round with the next data that is sent.
    pub(super) fn begin(&mut self, arrived: Seq) {
        self.next = arrived;
    }

    /// The data that had arrived at the start of this round.
    pub(super) fn next(&self) -> Seq {
        self.next
    }
}

/// The maximum rate of the present ProbeBW cycle and the previous one ("BBR.max_bw Max Filter").
#[derive(Debug, Default)]
pub(super) struct MaxRate {
    before: f64,
    now: f64,
}

impl MaxRate {
    pub(super) fn max(&self) -> f64 {
        self.before.max(self.now)
    }

    pub(super) fn handle(&mut self, sample: &Sample) {
        // An application-limited sample is only a lower bound.
        if sample.rate >= self.max() || !sample.limited {
            self.now = self.now.max(sample.rate);
        }
    }

    /// Starts another cycle.
    pub(super) fn advance(&mut self) {
        if self.now > 0.0 {
            (self.before, self.now) = (self.now, 0.0);
        }
    }
}

/// Limits until the next bandwidth probe, from losses outside of probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortTerm {
    /// Bytes per second.
    pub rate: f64,
    pub in_flight: u32,
}

impl ShortTerm {
    pub(super) const NONE: Self = Self { rate: f64::INFINITY, in_flight: UNBOUNDED };

    pub(super) fn max(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), in_flight: self.in_flight.max(other.in_flight) }
    }
}

impl Default for ShortTerm {
    fn default() -> Self {
        Self::NONE
    }
}

/// Delivery in the last round trip, and whether it had losses.
#[derive(Debug, Default)]
pub(super) struct Latest {
    rate: f64,
    arrived: u32,
    /// The data that had arrived at the start of this round trip.
    begin: Seq,
    /// Whether a round trip ends with this acknowledgement.
    pub starts: bool,
    lossy: bool,
    /// Number of separate lost ranges, and the end of the last one.
    losses: (u8, Seq),
}

impl Latest {
    pub(super) fn note_lost(&mut self, loss: &Loss<'_>) {
        self.note_repaired(loss.arrived);
        if self.losses.0 == 0 || self.losses.1 != loss.range.start {
            self.losses.0 = self.losses.0.saturating_add(1);
        }
        self.losses.1 = loss.range.end;
    }

    /// Records a loss.
    pub(super) fn note_repaired(&mut self, arrived: Seq) {
        if !self.lossy {
            self.begin = arrived;
        }
        self.lossy = true;
    }

    pub(super) fn forget_loss(&mut self) {
        self.lossy = false;
    }

    /// Number of separate lost ranges in this round trip.
    pub(super) fn losses(&self) -> u8 {
        self.losses.0
    }

    /// Bytes that arrived in this round trip.
    pub(super) fn arrived(&self) -> u32 {
        self.arrived
    }

    pub(super) fn handle(&mut self, sample: &Sample, arrived: Seq) {
        self.rate = self.rate.max(sample.rate);
        self.arrived = self.arrived.max(sample.arrived);
        self.starts = !sample.prior.before(self.begin);
        if self.starts {
            self.begin = arrived;
        }
    }

    /// Starts a round trip after all other steps of an acknowledgement.
    pub(super) fn advance(&mut self, sample: &Sample) {
        if self.starts {
            (self.rate, self.arrived) = (sample.rate, sample.arrived);
            self.lossy = false;
            self.losses.0 = 0;
        }
    }

    /// "ResetCongestionSignals".
    pub(super) fn forget(&mut self) {
        (self.rate, self.arrived, self.lossy) = (0.0, 0, false);
    }
}

/// Bytes that are acknowledged beyond the expected rate ("BBR.extra_acked").
#[derive(Debug)]
pub(super) struct Aggregation {
    since: Time,
    arrived: f64,
    /// The maximum of the present rounds and of the previous ones.
    most: [u32; 2],
    rounds: u8,
}

/// Rounds of each half of the filter. Together they are the draft's ten.
const ROUNDS: u8 = 5;

impl Aggregation {
    pub(super) fn new(now: Time) -> Self {
        Self { since: now, arrived: 0.0, most: [0; 2], rounds: 0 }
    }

    pub(super) fn restart(&mut self, now: Time) {
        (self.since, self.arrived) = (now, 0.0);
    }

    pub(super) fn extra(&self) -> u32 {
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
    pub(super) fn aggregate(&mut self, event: &AckEvent) {
        if self.round.starts {
            self.aggregation.note_round(if self.full.reached { ROUNDS } else { 1 });
        }
        self.aggregation.handle(event.bytes, self.rate(), self.window.bytes, event.now);
    }

    /// Adapts to losses outside of bandwidth probes once a round trip. They show that the path has
    /// become narrower ("When not Probing for Bandwidth").
    pub(super) fn adapt_to_losses(&mut self) {
        if !self.latest.lossy || self.phase.searches() {
            return;
        }
        let rate =
            if self.short_term.rate.is_finite() { self.short_term.rate } else { self.rate.max() };
        let in_flight = if self.short_term.in_flight == UNBOUNDED {
            self.window.bytes
        } else {
            self.short_term.in_flight
        };
        self.short_term = ShortTerm {
            rate: self.latest.rate.max(BETA * rate),
            in_flight: self.latest.arrived.max((BETA * f64::from(in_flight)) as u32),
        };
    }

    /// Handles a bandwidth probe with too many losses ("Probing for Bandwidth In ProbeBW").
    pub(super) fn handle_inflight_too_high(
        &mut self,
        in_flight: u32,
        limited: bool,
        arrived: Seq,
        now: Time,
    ) {
        self.probe.was_too_high = true;
        self.probe.samples = false;
        if !limited {
            let least = (BETA * f64::from(self.target())) as u32;
            self.long_term = in_flight.max(least);
        }
        if self.phase == Phase::Up {
            self.recovery.ended = Some(Phase::Up);
            self.begin_down(arrived, now);
        }
    }

    /// The intended bytes in flight, unless congestion allows less.
    pub(super) fn target(&self) -> u32 {
        self.product(1.0).min(self.window.bytes)
    }
}
