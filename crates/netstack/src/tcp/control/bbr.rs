//! BBR, version 3, after draft-ietf-ccwg-bbr; sections are named by their titles there.
//!
//! ```text
//!   Startup -> Drain -> Down -> Cruise -> Refill -> Up    ProbeRtt, from everywhere
//!                        ^__________________________|     each five seconds
//! ```
//!
//! The model of the path is the greatest rate at which it delivered lately and its least
//! round trip time; the phase says whether to send faster than that, as fast, or slower.
//! Where losses say that less fits than the product of both, `long` bounds what flies from
//! one search for more to the next, and `short` until the next begins.

mod min_rtt;
mod model;
mod probing;

use std::time::Duration;

use min_rtt::MinRtt;
use model::{Aggregation, Latest, MaxRate, Round, Short};
use probing::{FullPipe, Probe};

use super::{Departure, INITIAL_SEGMENTS, Loss, News, Pace};
use crate::{
    tcp::{delivery::Delivery, seq::Seq},
    time::Time,
};

/// No bound, in bytes.
const UNBOUNDED: u32 = u32::MAX / 4;
/// The least window, in segments ("Minimum cwnd for Pipelining").
const MIN_SEGMENTS: u32 = 4;
/// What is left of the estimated rate to pace at: a little less, so that queues drain
/// ("Pacing Rate").
const PACING_MARGIN: f64 = 0.99;
/// What leaves at once: what the pace makes of a millisecond, and of that no more than a
/// super-packet ("Send Quantum").
const QUANTUM: Duration = Duration::from_millis(1);
const MAX_QUANTUM: u32 = 64 * 1024;
/// The least round trip time for which there is a window. On a shorter path what takes
/// longest is that threads of both hosts wait for their turns; a window of no more than the
/// path holds would slow it down, what is slower would make the window smaller, and so on.
const HOSTS: Duration = Duration::from_millis(5);
/// The round trip time before one was measured ("Pacing Rate").
const NO_RTT: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Bbr {
    mss: u32,
    phase: Phase,
    window: u32,
    /// The last window that neither recovery nor a probe for the round trip time made.
    good: u32,
    /// Bytes a second.
    pace: f64,
    round: Round,
    rate: MaxRate,
    latest: Latest,
    short: Short,
    /// Bytes that may fly, as losses in searches for more said.
    long: u32,
    aggregation: Aggregation,
    full: FullPipe,
    probe: Probe,
    min_rtt: MinRtt,
    recovery: Recovery,
    /// Bytes of the initial window that did not arrive yet.
    initial: u32,
    /// Whether the window, and nothing else, held something back in this round.
    limited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Sends ever faster, until the path delivers no more.
    Startup,
    /// Lets the queue drain that this made.
    Drain,
    /// Sends slower than the path delivers: the queue drains, others find room.
    Down,
    /// Sends as fast as it does.
    Cruise,
    /// The same, without the bounds that losses set since the last search.
    Refill,
    /// Searches for more.
    Up,
    /// Has little on its way, so that the least round trip time is seen.
    ProbeRtt,
}

/// What was there before a recovery, in case it is needless.
#[derive(Debug, Default)]
struct Recovery {
    /// Whether it goes on.
    is_on: bool,
    /// The phase that its losses ended.
    ended: Option<Phase>,
    short: Short,
    long: u32,
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

    /// Whether it looks for what the path carries, and not for a way to live with it.
    fn searches(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    /// Whether it is one of the steady cycle.
    fn cycles(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }
}

impl Bbr {
    /// Before the first data ("Initialization").
    pub fn new(mss: u32, seed: u32, smoothed: Option<Duration>, now: Time) -> Self {
        let window = INITIAL_SEGMENTS * mss;
        let rtt = smoothed.filter(|rtt| !rtt.is_zero()).unwrap_or(NO_RTT);
        Self {
            mss,
            phase: Phase::Startup,
            window,
            good: window,
            pace: Phase::Startup.pacing_gain() * f64::from(window) / rtt.as_secs_f64(),
            round: Round::default(),
            rate: MaxRate::default(),
            latest: Latest::default(),
            short: Short::NONE,
            long: UNBOUNDED,
            aggregation: Aggregation::new(now),
            full: FullPipe::default(),
            probe: Probe::new(seed, now),
            min_rtt: MinRtt::new(smoothed, now),
            recovery: Recovery::default(),
            initial: window,
            limited: false,
        }
    }

    pub fn window(&self) -> u32 {
        self.window
    }

    /// The initial window leaves at once, as it does with every TCP: pacing it by the
    /// handshake's round trip time would add a third of that to short exchanges.
    pub fn pace(&self) -> Pace {
        if self.rate.max() == 0.0 {
            return Pace { rate: f64::INFINITY, quantum: MAX_QUANTUM };
        }
        let quantum = (self.pace * QUANTUM.as_secs_f64()) as u32;
        Pace { rate: self.pace, quantum: quantum.min(MAX_QUANTUM).max(2 * self.mss) }
    }

    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.window = self.window.max(self.least());
    }

    pub fn note_limited(&mut self) {
        self.limited = true;
    }

    /// "Restarting From Idle": the model stays, and so does the window, since the pace
    /// spreads it.
    pub fn note_departure(&mut self, departure: &Departure) {
        if !departure.first || !departure.limited {
            return;
        }
        self.min_rtt.restarts = true;
        self.aggregation.restart(departure.now);
        if self.phase.cycles() {
            self.set_pace(1.0);
        } else if self.phase == Phase::ProbeRtt {
            self.end_probe_rtt(self.round.next(), departure.now);
        }
    }

    /// "Updating the Model Upon Packet Loss".
    pub fn note_lost(&mut self, loss: &Loss<'_>) {
        self.save();
        self.latest.note_lost(loss);
        if self.probe.samples && is_too_much(loss.since, loss.stretch.then.flying) {
            let flying = flying_at_loss(loss);
            self.handle_too_much(flying, loss.stretch.then.limited, loss.arrived, loss.now);
        }
    }

    pub fn note_repaired(&mut self, arrived: Seq) {
        self.latest.note_repaired(arrived);
    }

    pub fn enter_recovery(&mut self) {
        self.save();
    }

    pub fn leave_recovery(&mut self) {
        self.recovery.is_on = false;
        self.window = self.window.max(self.good);
    }

    /// One segment goes; what arrives makes it more.
    pub fn handle_timeout(&mut self) {
        self.save();
        self.window = self.mss;
    }

    /// "Saving State Upon Loss Recovery".
    fn save(&mut self) {
        self.note_good();
        if !self.recovery.is_on {
            let Self { short, long, .. } = *self;
            self.recovery = Recovery { is_on: true, ended: None, short, long };
        }
    }

    /// Remembers the window, where it is one to come back to.
    fn note_good(&mut self) {
        let modulated = self.recovery.is_on || self.phase == Phase::ProbeRtt;
        self.good = if modulated { self.good.max(self.window) } else { self.window };
    }

    /// "Handling a Spurious Loss Recovery".
    pub fn undo(&mut self) {
        let Recovery { ended, short, long, .. } = std::mem::take(&mut self.recovery);
        self.window = self.window.max(self.good);
        self.latest.forget_loss();
        self.full.restart(0.0);
        self.short = self.short.max(short);
        self.long = self.long.max(long);
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
    pub fn handle_ack(&mut self, news: &News, delivery: &mut Delivery) {
        let Some(sample) = &news.sample else { return };
        let arrived = delivery.arrived();
        self.initial = self.initial.saturating_sub(news.bytes);
        self.latest.handle(sample, arrived);
        self.round.handle(sample.prior, arrived);
        if self.round.starts {
            self.probe.note_round();
        }
        self.rate.handle(sample);
        if self.latest.starts {
            self.adapt_to_losses();
        }
        self.aggregate(news);
        self.full.handle(sample, self.round.starts);
        self.check_startup(sample);
        self.check_drain(news, arrived);
        self.cycle(news, sample, arrived);
        self.min_rtt.handle(news.rtt, news.now);
        self.check_probe_rtt(news, delivery);
        self.latest.advance(sample);
        self.set_pace(self.phase.pacing_gain());
        self.set_window(news);
        if self.round.starts {
            self.limited = false;
        }
    }

    /// The rate at which to send, in bytes a second.
    fn rate(&self) -> f64 {
        self.rate.max().min(self.short.rate)
    }

    /// "Pacing Rate".
    fn set_pace(&mut self, gain: f64) {
        let pace = gain * self.rate() * PACING_MARGIN;
        if pace > self.pace || self.full.reached && pace > 0.0 {
            self.pace = pace;
        }
    }

    /// "cwnd Adjustment Mechanism".
    fn set_window(&mut self, news: &News) {
        let most = self.most(self.phase.window_gain(), self.aggregation.extra());
        let window = self.window.saturating_add(news.bytes);
        if self.full.reached {
            self.window = window.min(most);
        } else if self.window < most || self.initial > 0 {
            self.window = window;
        }
        if self.phase == Phase::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        // "Bounding cwnd Based on Recent Congestion".
        let bound = match self.phase {
            Phase::Startup | Phase::Drain => UNBOUNDED,
            Phase::Cruise | Phase::ProbeRtt => self.with_headroom(),
            Phase::Down | Phase::Refill | Phase::Up => self.long,
        };
        self.window = self.window.min(bound).min(self.short.flying).max(self.least());
    }

    fn least(&self) -> u32 {
        MIN_SEGMENTS * self.mss
    }

    /// What may fly: a multiple of what the path holds, and some bytes more ("Computing
    /// BBR.max_inflight").
    fn most(&self, gain: f64, extra: u32) -> u32 {
        // One super-packet here, one on its way, one of which nobody has heard yet.
        let offload = 3 * self.pace().quantum;
        let most = self.product(gain).saturating_add(extra).max(offload).max(self.least());
        most + if self.phase == Phase::Up { 2 * self.mss } else { 0 }
    }

    /// A multiple of what the path holds without a queue.
    fn product(&self, gain: f64) -> u32 {
        match self.min_rtt.rtt() {
            Some(rtt) => {
                (gain * self.rate() * rtt.max(HOSTS).as_secs_f64()).min(f64::from(UNBOUNDED)) as u32
            }
            None => INITIAL_SEGMENTS * self.mss,
        }
    }

    /// What may fly where others are left some room.
    fn with_headroom(&self) -> u32 {
        /// Of 100, what is left ("Headroom").
        const ROOM: u64 = 15;
        if self.long == UNBOUNDED {
            return UNBOUNDED;
        }
        let room = ((u64::from(self.long) * ROOM / 100) as u32).max(self.mss);
        self.long.saturating_sub(room).max(self.least())
    }
}

/// Whether so many losses say that so much was too much: 2 of 100 ("LossThresh").
fn is_too_much(lost: u32, flying: u32) -> bool {
    f64::from(lost) > f64::from(flying) * LOSS_THRESHOLD
}

const LOSS_THRESHOLD: f64 = 0.02;

/// How much flew when losses became too many, within what left at once.
fn flying_at_loss(loss: &Loss<'_>) -> u32 {
    let len = loss.stretch.len();
    let flying = f64::from(loss.stretch.then.flying.saturating_sub(len));
    let lost = f64::from(loss.since.saturating_sub(len));
    let prefix = (LOSS_THRESHOLD * flying - lost) / (1.0 - LOSS_THRESHOLD);
    (flying + prefix.max(0.0)) as u32
}
