//! BBR, version 3, following draft-ietf-ccwg-bbr. Comments quote the titles of its sections.
//!
//! ```text
//!   Startup -> Drain -> Down -> Cruise -> Refill -> Up    ProbeRtt, from everywhere
//!                        ^__________________________|     each five seconds
//! ```
//!
//! The model of the path is its maximum delivery rate in recent rounds and its minimum round trip
//! time. The phase determines whether to send faster than that rate, at the same rate, or slower.
//! Losses show that less than the product of both fits. `long_term` then limits the data in flight
//! from one bandwidth probe to the next, and `short_term` until the next one begins.

mod min_rtt;
mod model;
mod probing;

use std::time::Duration;

use min_rtt::MinRtt;
use model::{Aggregation, Latest, MaxRate, Round, ShortTerm};
use probing::{FullPipe, Probe};

use super::{AckEvent, INITIAL_SEGMENTS, Loss, Pace, SendEvent};
use crate::{
    tcp::{delivery::Delivery, seq::Seq},
    time::Time,
};

/// No limit, in bytes.
const UNBOUNDED: u32 = u32::MAX / 4;
/// The smallest window, in segments ("Minimum cwnd for Pipelining").
const MIN_SEGMENTS: u32 = 4;
/// Factor of the estimated rate for pacing. It is less than 1, so that queues drain ("Pacing
/// Rate").
const PACING_MARGIN: f64 = 0.99;
/// The data that is sent at once: the pacing rate for this time, but at most one super-packet
/// ("Send Quantum").
const QUANTUM: Duration = Duration::from_millis(1);
const MAX_QUANTUM: u32 = 64 * 1024;
/// The smallest round trip time for which the window is computed. On shorter paths most of the time
/// is spent waiting for threads of both hosts. A window for the path alone would reduce the rate,
/// which would reduce the window further.
const MIN_BDP_RTT: Duration = Duration::from_millis(5);
/// Round trip time before the first measurement ("Pacing Rate").
const NO_RTT: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Bbr {
    mss: u32,
    phase: Phase,
    window: Window,
    /// Bytes per second.
    pace: f64,
    round: Round,
    rate: MaxRate,
    latest: Latest,
    short_term: ShortTerm,
    /// Limit of bytes in flight, from losses during bandwidth probes.
    long_term: u32,
    aggregation: Aggregation,
    full: FullPipe,
    probe: Probe,
    min_rtt: MinRtt,
    recovery: Recovery,
}

/// The congestion window.
#[derive(Debug)]
struct Window {
    bytes: u32,
    /// The last window outside of recovery and ProbeRTT.
    prior: u32,
    /// Bytes of the initial window that are not acknowledged.
    initial: u32,
    /// Whether the window was the only limit in this round.
    is_limiting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Increases the rate until the path delivers no more.
    Startup,
    /// Drains the queue of Startup.
    Drain,
    /// Sends slower than the path delivers. The queue drains, and other flows get capacity.
    Down,
    /// Sends at the delivery rate.
    Cruise,
    /// The same, without the limits from losses since the last probe.
    Refill,
    /// Probes for more bandwidth.
    Up,
    /// Reduces the data in flight to measure the minimum round trip time.
    ProbeRtt,
}

/// State before a recovery, for the case that it was spurious.
#[derive(Debug, Default)]
struct Recovery {
    /// Whether the recovery is in progress.
    is_on: bool,
    /// The phase that the losses of this recovery ended.
    ended: Option<Phase>,
    short_term: ShortTerm,
    long_term: u32,
}

impl Phase {
    /// "Summary of Control Behavior in the State Machine".
    fn pacing_gain(self) -> f64 {
        match self {
            Self::Startup => 4.0 * std::f64::consts::LN_2,
            Self::Drain => 0.5,
            Self::Down => 0.9,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 1.0,
            Self::Up => 1.25,
        }
    }

    fn window_gain(self) -> f64 {
        match self {
            Self::ProbeRtt => 0.5,
            Self::Up => 2.25,
            _ => 2.0,
        }
    }

    /// Whether the phase searches for the path's capacity.
    fn searches(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    /// Whether the phase belongs to the ProbeBW cycle.
    fn cycles(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }
}

impl Bbr {
    /// State before the first data ("Initialization").
    pub(crate) fn new(mss: u32, seed: u32, smoothed: Option<Duration>, now: Time) -> Self {
        let window = INITIAL_SEGMENTS * mss;
        let rtt = smoothed.filter(|rtt| !rtt.is_zero()).unwrap_or(NO_RTT);
        Self {
            mss,
            phase: Phase::Startup,
            window: Window { bytes: window, prior: window, initial: window, is_limiting: false },
            pace: Phase::Startup.pacing_gain() * f64::from(window) / rtt.as_secs_f64(),
            round: Round::default(),
            rate: MaxRate::default(),
            latest: Latest::default(),
            short_term: ShortTerm::NONE,
            long_term: UNBOUNDED,
            aggregation: Aggregation::new(now),
            full: FullPipe::default(),
            probe: Probe::new(seed, now),
            min_rtt: MinRtt::new(smoothed, now),
            recovery: Recovery::default(),
        }
    }

    pub(crate) fn window(&self) -> u32 {
        self.window.bytes
    }

    /// The initial window is not paced, as with other TCPs. Pacing it by the handshake's round trip
    /// time would delay short exchanges by a third of that.
    pub(crate) fn pace(&self) -> Pace {
        if self.rate.max() == 0.0 {
            return Pace { rate: f64::INFINITY, quantum: MAX_QUANTUM };
        }
        let quantum = (self.pace * QUANTUM.as_secs_f64()) as u32;
        Pace { rate: self.pace, quantum: quantum.min(MAX_QUANTUM).max(2 * self.mss) }
    }

    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.window.bytes = self.window.bytes.max(self.least());
    }

    pub(crate) fn note_limited(&mut self) {
        self.window.is_limiting = true;
    }

    /// "Restarting From Idle": model and window remain, because the data is paced.
    pub(crate) fn handle_send(&mut self, event: &SendEvent) {
        if !event.first || !event.limited {
            return;
        }
        self.min_rtt.restarts = true;
        self.aggregation.restart(event.now);
        if self.phase.cycles() {
            self.set_pace(1.0);
        } else if self.phase == Phase::ProbeRtt {
            self.end_probe_rtt(self.round.next(), event.now);
        }
    }

    /// "Updating the Model Upon Packet Loss".
    pub(crate) fn note_lost(&mut self, loss: &Loss<'_>) {
        self.save();
        self.latest.note_lost(loss);
        if self.probe.samples && is_loss_too_high(loss.since, loss.range.then.in_flight) {
            let in_flight = in_flight_at_loss(loss);
            self.handle_inflight_too_high(
                in_flight,
                loss.range.then.limited,
                loss.arrived,
                loss.now,
            );
        }
    }

    pub(crate) fn note_repaired(&mut self, arrived: Seq) {
        self.latest.note_repaired(arrived);
    }

    pub(crate) fn enter_recovery(&mut self) {
        self.save();
    }

    pub(crate) fn leave_recovery(&mut self) {
        self.recovery.is_on = false;
        self.window.bytes = self.window.bytes.max(self.window.prior);
    }

    /// Reduces the window to one segment. Acknowledgements increase it again.
    pub(crate) fn handle_timeout(&mut self) {
        self.save();
        self.window.bytes = self.mss;
    }

    /// "Saving State Upon Loss Recovery".
    fn save(&mut self) {
        self.save_window();
        if !self.recovery.is_on {
            let Self { short_term, long_term, .. } = *self;
            self.recovery = Recovery { is_on: true, ended: None, short_term, long_term };
        }
    }

    /// Saves the window for the end of the recovery or of ProbeRTT.
    fn save_window(&mut self) {
        let modulated = self.recovery.is_on || self.phase == Phase::ProbeRtt;
        self.window.prior =
            if modulated { self.window.prior.max(self.window.bytes) } else { self.window.bytes };
    }

    /// "Handling a Spurious Loss Recovery".
    pub(crate) fn undo(&mut self) {
        let Recovery { ended, short_term, long_term, .. } = std::mem::take(&mut self.recovery);
        self.window.bytes = self.window.bytes.max(self.window.prior);
        self.latest.forget_loss();
        self.full.restart(0.0);
        self.short_term = self.short_term.max(short_term);
        self.long_term = self.long_term.max(long_term);
        if self.phase == Phase::ProbeRtt || ended.is_none_or(|ended| ended == self.phase) {
            return;
        }
        if ended == Some(Phase::Startup) {
            self.full.reached = false;
            self.phase = Phase::Startup;
        } else {
            self.begin_refill(self.round.next());
        }
    }

    /// "Per-ACK Steps".
    pub(crate) fn handle_ack(&mut self, event: &AckEvent, delivery: &mut Delivery) {
        let Some(sample) = &event.sample else { return };
        let arrived = delivery.arrived();
        self.window.initial = self.window.initial.saturating_sub(event.bytes);
        self.latest.handle(sample, arrived);
        self.round.handle(sample.prior, arrived);
        if self.round.starts {
            self.probe.note_round();
        }
        self.rate.handle(sample);
        if self.latest.starts {
            self.adapt_to_losses();
        }
        self.aggregate(event);
        self.full.handle(sample, self.round.starts);
        self.check_startup(sample);
        self.check_drain(event, arrived);
        self.cycle(event, sample, arrived);
        self.min_rtt.handle(event.rtt, event.now);
        self.check_probe_rtt(event, delivery);
        self.latest.advance(sample);
        self.set_pace(self.phase.pacing_gain());
        self.set_window(event);
        if self.round.starts {
            self.window.is_limiting = false;
        }
    }

    /// The rate limit in bytes per second.
    fn rate(&self) -> f64 {
        self.rate.max().min(self.short_term.rate)
    }

    /// "Pacing Rate".
    fn set_pace(&mut self, gain: f64) {
        let pace = gain * self.rate() * PACING_MARGIN;
        if pace > self.pace || self.full.reached && pace > 0.0 {
            self.pace = pace;
        }
    }

    /// "cwnd Adjustment Mechanism".
    fn set_window(&mut self, event: &AckEvent) {
        let most = self.most(self.phase.window_gain(), self.aggregation.extra());
        let window = self.window.bytes.saturating_add(event.bytes);
        if self.full.reached {
            self.window.bytes = window.min(most);
        } else if self.window.bytes < most || self.window.initial > 0 {
            self.window.bytes = window;
        }
        if self.phase == Phase::ProbeRtt {
            self.window.bytes = self.window.bytes.min(self.probe_rtt_window());
        }
        // "Bounding cwnd Based on Recent Congestion".
        let bound = match self.phase {
            Phase::Startup | Phase::Drain => UNBOUNDED,
            Phase::Cruise | Phase::ProbeRtt => self.with_headroom(),
            Phase::Down | Phase::Refill | Phase::Up => self.long_term,
        };
        self.window.bytes =
            self.window.bytes.min(bound).min(self.short_term.in_flight).max(self.least());
    }

    fn least(&self) -> u32 {
        MIN_SEGMENTS * self.mss
    }

    /// Limit of bytes in flight: a multiple of the bandwidth-delay product plus some bytes
    /// ("Computing BBR.max_inflight").
    fn most(&self, gain: f64, extra: u32) -> u32 {
        // One super-packet at the sender, one on the path, and one without an acknowledgement yet.
        let offload = 3 * self.pace().quantum;
        let most = self.product(gain).saturating_add(extra).max(offload).max(self.least());
        most + if self.phase == Phase::Up { 2 * self.mss } else { 0 }
    }

    /// A multiple of the bandwidth-delay product.
    fn product(&self, gain: f64) -> u32 {
        match self.min_rtt.rtt() {
            Some(rtt) => (gain * self.rate() * rtt.max(MIN_BDP_RTT).as_secs_f64())
                .min(f64::from(UNBOUNDED)) as u32,
            None => INITIAL_SEGMENTS * self.mss,
        }
    }

    /// Limit of bytes in flight that leaves capacity to other flows.
    fn with_headroom(&self) -> u32 {
        /// Percentage for other flows ("Headroom").
        const ROOM: u64 = 15;
        if self.long_term == UNBOUNDED {
            return UNBOUNDED;
        }
        let room = ((u64::from(self.long_term) * ROOM / 100) as u32).max(self.mss);
        self.long_term.saturating_sub(room).max(self.least())
    }
}

/// Whether the loss rate exceeds 2 % ("LossThresh").
fn is_loss_too_high(lost: u32, in_flight: u32) -> bool {
    f64::from(lost) > f64::from(in_flight) * LOSS_THRESHOLD
}

const LOSS_THRESHOLD: f64 = 0.02;

/// The bytes in flight at which the loss rate became too high, interpolated within the range that
/// was sent at once.
fn in_flight_at_loss(loss: &Loss<'_>) -> u32 {
    let len = loss.range.len();
    let in_flight = f64::from(loss.range.then.in_flight.saturating_sub(len));
    let lost = f64::from(loss.since.saturating_sub(len));
    let prefix = (LOSS_THRESHOLD * in_flight - lost) / (1.0 - LOSS_THRESHOLD);
    (in_flight + prefix.max(0.0)) as u32
}
