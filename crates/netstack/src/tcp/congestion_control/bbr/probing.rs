//! Probes the path's capacity, at the start and then every few seconds.

use std::time::Duration;

use super::{Bbr, Phase, UNBOUNDED, is_loss_too_high};
use crate::{
    tcp::{congestion_control::AckEvent, delivery::Sample, seq::Seq},
    time::Time,
};

/// Growth of the rate in a round below which the path may be full, and number of such rounds after
/// which it is ("Exiting Acceleration Based on Bandwidth Plateau").
const GROWTH: f64 = 1.25;
const FULL_ROUNDS: u8 = 3;
/// Separate losses in a round that end Startup ("Exiting Startup Based on Packet Loss").
const STARTUP_LOSSES: u8 = 6;
/// The most rounds of Drain.
const DRAIN_ROUNDS: u32 = 3;
/// Time between probes, plus a random time of up to a second. The number of rounds between them is
/// also limited, so that Reno would have grown by as many segments ("Time Scale for Bandwidth
/// Probing").
const WAIT: Duration = Duration::from_secs(2);
const RENO_ROUNDS: u32 = 63;

/// Detects a full path: it delivers no more although more is sent.
#[derive(Debug, Default)]
pub(super) struct FullPipe {
    rate: f64,
    rounds: u8,
    /// In this probe.
    pub now: bool,
    /// In any probe.
    pub reached: bool,
}

impl FullPipe {
    pub(super) fn restart(&mut self, rate: f64) {
        (self.rate, self.rounds, self.now) = (rate, 0, false);
    }

    /// Any sample can show growth, as in Linux. The draft uses only the first of a round.
    pub(super) fn handle(&mut self, sample: &Sample, round_starts: bool) {
        if self.now || sample.limited || sample.rate == 0.0 {
            return;
        }
        if sample.rate >= self.rate * GROWTH {
            self.restart(sample.rate);
        } else if round_starts {
            self.rounds += 1;
            self.now = self.rounds >= FULL_ROUNDS;
            self.reached |= self.now;
        }
    }
}

/// The ProbeBW cycle.
#[derive(Debug)]
pub(super) struct Probe {
    /// Time of the next probe, at the latest.
    next: Time,
    /// Rounds since this time was set.
    rounds: u32,
    /// Bytes that arrived since `long_term` was raised last, and the number of bytes for the next
    /// raise.
    acked: u32,
    step: u32,
    /// Rounds of this probe.
    steps: u8,
    /// The part of a probe to which the present acknowledgements belong.
    ack_phase: AckPhase,
    /// Whether data of a probe is being acknowledged and was not too much yet.
    pub samples: bool,
    /// Whether the last probe had too many losses.
    pub was_too_high: bool,
    /// Whether this probe stopped at the level at which the last one had them.
    stopped_risky_probe: bool,
    /// Round in which Drain ends at the latest.
    drain: u32,
    seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

impl Probe {
    pub(super) fn new(seed: u32, now: Time) -> Self {
        Self {
            next: now,
            rounds: 0,
            acked: 0,
            step: UNBOUNDED,
            steps: 0,
            ack_phase: AckPhase::Init,
            samples: false,
            was_too_high: false,
            stopped_risky_probe: false,
            drain: 0,
            seed: seed | 1,
        }
    }

    pub(super) fn note_round(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
    }

    /// "PickProbeWait": the time is random, so that flows on one path do not probe together.
    fn pick_wait(&mut self, now: Time) {
        // Marsaglia's xorshift.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        self.rounds = self.seed & 1;
        self.next = now + WAIT + Duration::from_millis(u64::from(self.seed >> 1) % 1000);
    }

    /// Raises the limit by one segment in the first round, then by two, by four, and so on.
    fn raise_slope(&mut self, window: u32, mss: u32) {
        self.step = (window >> self.steps).max(mss);
        self.steps = (self.steps + 1).min(30);
    }

    /// Ends a probe, or starts ProbeRTT. Data that was sent before is still being acknowledged.
    pub(super) fn stop(&mut self) {
        self.ack_phase = AckPhase::ProbeStopping;
    }
}

impl Bbr {
    /// "Exiting Startup Based on Packet Loss", and based on the plateau.
    pub(super) fn check_startup(&mut self, sample: &Sample) {
        if self.phase != Phase::Startup {
            return;
        }
        let lossy = self.latest.starts
            && self.recovery.is_on
            && self.latest.losses() >= STARTUP_LOSSES
            && is_loss_too_high(sample.lost, sample.in_flight);
        if lossy {
            self.recovery.ended = Some(Phase::Startup);
            self.full.reached = true;
            self.long_term = self.product(1.0).max(self.latest.arrived());
        }
        if self.full.reached {
            self.phase = Phase::Drain;
            self.probe.drain = self.round.count.wrapping_add(DRAIN_ROUNDS);
        }
    }

    pub(super) fn check_drain(&mut self, event: &AckEvent, arrived: Seq) {
        let late = self.round.count.wrapping_sub(self.probe.drain) as i32 > 0;
        if self.phase == Phase::Drain && (event.in_flight <= self.most(1.0, 0) || late) {
            self.begin_down(arrived, event.now);
        }
    }

    /// "ProbeBW Algorithm Details".
    pub(super) fn cycle(&mut self, event: &AckEvent, sample: &Sample, arrived: Seq) {
        if !self.full.reached || self.adapt(event, sample, arrived) {
            return;
        }
        match self.phase {
            Phase::Down | Phase::Cruise if self.is_time_to_search(event.now) => {
                self.begin_refill(arrived);
            }
            Phase::Down => {
                let room = self.with_headroom().min(self.most(1.0, 0));
                if event.in_flight <= room {
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Refill if self.round.starts => {
                self.probe.samples = true;
                self.begin_up(sample, arrived);
            }
            Phase::Up => self.go_on_or_down(event, sample, arrived),
            _ => {}
        }
    }

    pub(super) fn begin_down(&mut self, arrived: Seq, now: Time) {
        self.latest.forget();
        self.probe.step = UNBOUNDED;
        self.probe.pick_wait(now);
        self.probe.stop();
        self.round.begin(arrived);
        self.phase = Phase::Down;
    }

    pub(super) fn begin_cruise(&mut self) {
        self.phase = Phase::Cruise;
    }

    pub(super) fn begin_refill(&mut self, arrived: Seq) {
        self.short_term = super::ShortTerm::NONE;
        self.probe.steps = 0;
        self.probe.acked = 0;
        self.probe.stopped_risky_probe = false;
        self.probe.ack_phase = AckPhase::Refilling;
        self.round.begin(arrived);
        self.phase = Phase::Refill;
    }

    fn begin_up(&mut self, sample: &Sample, arrived: Seq) {
        self.probe.ack_phase = AckPhase::ProbeStarting;
        self.round.begin(arrived);
        self.full.restart(sample.rate);
        self.phase = Phase::Up;
        self.probe.raise_slope(self.window.bytes, self.mss);
    }

    fn is_time_to_search(&self, now: Time) -> bool {
        let reno = (self.target() / self.mss).min(RENO_ROUNDS);
        now > self.probe.next || self.probe.rounds >= reno
    }

    /// "Exit Conditions for Bandwidth Probing".
    fn go_on_or_down(&mut self, event: &AckEvent, sample: &Sample, arrived: Seq) {
        let risky = self.probe.was_too_high && event.in_flight >= self.long_term;
        self.probe.stopped_risky_probe |= risky;
        if !risky && self.window.is_limiting && self.window.bytes >= self.long_term {
            // The limit, and not the path, bounds the rate.
            self.full.restart(sample.rate);
        } else if risky || self.full.now {
            self.probe.was_too_high = false;
            self.begin_down(arrived, event.now);
        }
    }

    /// "AdaptLongTermModel". Returns whether another phase began.
    fn adapt(&mut self, event: &AckEvent, sample: &Sample, arrived: Seq) -> bool {
        if self.round.starts && self.probe.ack_phase == AckPhase::ProbeStarting {
            self.probe.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.round.starts && self.probe.ack_phase == AckPhase::ProbeStopping {
            self.probe.samples = false;
            self.probe.ack_phase = AckPhase::Init;
            // Also after a ProbeRTT pause. The draft treats all samples after a pause as
            // application-limited. With round trips of seconds every cycle has a pause, and a rate
            // that is too high would never expire.
            if self.phase.cycles() {
                self.rate.advance();
            }
            if self.phase.cycles() && self.probe.stopped_risky_probe && !self.probe.was_too_high {
                self.begin_refill(arrived);
                return true;
            }
        }
        if !is_loss_too_high(sample.lost, sample.in_flight) && self.long_term != UNBOUNDED {
            self.long_term = self.long_term.max(sample.in_flight);
            if self.phase == Phase::Up {
                self.raise_long_term(event);
            }
        }
        false
    }

    /// "ProbeInflightLongtermUpward".
    fn raise_long_term(&mut self, event: &AckEvent) {
        if !self.window.is_limiting || self.window.bytes < self.long_term {
            return;
        }
        let probe = &mut self.probe;
        probe.acked = probe.acked.saturating_add(event.bytes);
        let times = probe.acked / probe.step;
        probe.acked %= probe.step;
        self.long_term =
            self.long_term.saturating_add(times.saturating_mul(self.mss)).min(UNBOUNDED - 1);
        if self.round.starts {
            probe.raise_slope(self.window.bytes, self.mss);
        }
    }
}
