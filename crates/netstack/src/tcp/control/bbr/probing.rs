//! The search for what the path carries, at the beginning and then every few seconds.

use std::time::Duration;

use super::{Bbr, Phase, UNBOUNDED, is_too_much};
use crate::{
    tcp::{control::News, delivery::Sample, seq::Seq},
    time::Time,
};

/// The rate of growth at which a path is not full yet, and the rounds without it after
/// which it is ("Exiting Acceleration Based on Bandwidth Plateau").
const GROWTH: f64 = 1.25;
const FULL_ROUNDS: u8 = 3;
/// Stretches that have to be lost in a round for it to end Startup ("Exiting Startup Based
/// on Packet Loss").
const STARTUP_LOSSES: u8 = 6;
/// Rounds that Drain takes at most.
const DRAIN_ROUNDS: u32 = 3;
/// The time between searches, to which up to a second more is added; and rounds between
/// them at most, in which Reno would have grown by as many segments ("Time Scale for
/// Bandwidth Probing").
const WAIT: Duration = Duration::from_secs(2);
const RENO_ROUNDS: u32 = 63;

/// Whether the path is full: it delivers no more though more is sent.
#[derive(Debug, Default)]
pub struct FullPipe {
    rate: f64,
    rounds: u8,
    /// In this search.
    pub now: bool,
    /// In any search.
    pub reached: bool,
}

impl FullPipe {
    pub fn restart(&mut self, rate: f64) {
        (self.rate, self.rounds, self.now) = (rate, 0, false);
    }

    /// Any sample shows growth, as in Linux; the draft takes a round's first alone.
    pub fn handle(&mut self, sample: &Sample, round_starts: bool) {
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

/// The steady cycle.
#[derive(Debug)]
pub struct Probe {
    /// When the next search is due at the latest.
    next: Time,
    /// Rounds since this was settled.
    rounds: u32,
    /// Bytes that arrived since `long` was raised last, and that have to for the next time.
    acked: u32,
    step: u32,
    /// Rounds of this search.
    steps: u8,
    /// What of the search the samples show.
    shows: Shows,
    /// Whether what was sent in a search is being acknowledged, and was not too much yet.
    pub samples: bool,
    /// Whether the last search found too many losses.
    pub was_too_high: bool,
    /// Whether this one stopped where the last found them.
    cautious: bool,
    /// Rounds that Drain may still take.
    drain: u32,
    seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    Nothing,
    Refilling,
    Beginning,
    Middle,
    End,
}

impl Probe {
    pub fn new(seed: u32, now: Time) -> Self {
        Self {
            next: now,
            rounds: 0,
            acked: 0,
            step: UNBOUNDED,
            steps: 0,
            shows: Shows::Nothing,
            samples: false,
            was_too_high: false,
            cautious: false,
            drain: 0,
            seed: seed | 1,
        }
    }

    pub fn note_round(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
    }

    /// "PickProbeWait": flows that share a path are not to search together.
    fn pick_wait(&mut self, now: Time) {
        // Marsaglia's xorshift.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        self.rounds = self.seed & 1;
        self.next = now + WAIT + Duration::from_millis((self.seed >> 1) as u64 % 1000);
    }

    /// The bound is raised by a segment a round, then by two, by four...
    fn steepen(&mut self, window: u32, mss: u32) {
        self.step = (window >> self.steps).max(mss);
        self.steps = (self.steps + 1).min(30);
    }

    /// A search is over, or a probe for the round trip time begins: what was sent until now
    /// is still being acknowledged.
    pub fn stop(&mut self) {
        self.shows = Shows::End;
    }
}

impl Bbr {
    /// "Exiting Startup Based on Packet Loss", and by the plateau.
    pub(super) fn check_startup(&mut self, sample: &Sample) {
        if self.phase != Phase::Startup {
            return;
        }
        let lossy = self.latest.starts
            && self.recovery.is_on
            && self.latest.losses() >= STARTUP_LOSSES
            && is_too_much(sample.lost, sample.flying);
        if lossy {
            self.recovery.ended = Some(Phase::Startup);
            self.full.reached = true;
            self.long = self.product(1.0).max(self.latest.arrived());
        }
        if self.full.reached {
            self.phase = Phase::Drain;
            self.probe.drain = self.round.count.wrapping_add(DRAIN_ROUNDS);
        }
    }

    pub(super) fn check_drain(&mut self, news: &News, arrived: Seq) {
        let late = self.round.count.wrapping_sub(self.probe.drain) as i32 > 0;
        if self.phase == Phase::Drain && (news.flying <= self.most(1.0, 0) || late) {
            self.begin_down(arrived, news.now);
        }
    }

    /// "ProbeBW Algorithm Details".
    pub(super) fn cycle(&mut self, news: &News, sample: &Sample, arrived: Seq) {
        if !self.full.reached || self.adapt(news, sample, arrived) {
            return;
        }
        match self.phase {
            Phase::Down | Phase::Cruise if self.is_time_to_search(news.now) => {
                self.begin_refill(arrived);
            }
            Phase::Down => {
                let room = self.with_headroom().min(self.most(1.0, 0));
                if news.flying <= room {
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Refill if self.round.starts => {
                self.probe.samples = true;
                self.begin_up(sample, arrived);
            }
            Phase::Up => self.go_on_or_down(news, sample, arrived),
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
        self.short = super::Short::NONE;
        self.probe.steps = 0;
        self.probe.acked = 0;
        self.probe.cautious = false;
        self.probe.shows = Shows::Refilling;
        self.round.begin(arrived);
        self.phase = Phase::Refill;
    }

    fn begin_up(&mut self, sample: &Sample, arrived: Seq) {
        self.probe.shows = Shows::Beginning;
        self.round.begin(arrived);
        self.full.restart(sample.rate);
        self.phase = Phase::Up;
        self.probe.steepen(self.window, self.mss);
    }

    fn is_time_to_search(&self, now: Time) -> bool {
        let reno = (self.target() / self.mss).min(RENO_ROUNDS);
        now > self.probe.next || self.probe.rounds >= reno
    }

    /// "Exit Conditions for Bandwidth Probing".
    fn go_on_or_down(&mut self, news: &News, sample: &Sample, arrived: Seq) {
        let risky = self.probe.was_too_high && news.flying >= self.long;
        self.probe.cautious |= risky;
        if !risky && self.limited && self.window >= self.long {
            // It is the bound, and not the path, that lets no more through.
            self.full.restart(sample.rate);
        } else if risky || self.full.now {
            self.probe.was_too_high = false;
            self.begin_down(arrived, news.now);
        }
    }

    /// "AdaptLongTermModel"; whether it began another phase.
    fn adapt(&mut self, news: &News, sample: &Sample, arrived: Seq) -> bool {
        if self.round.starts && self.probe.shows == Shows::Beginning {
            self.probe.shows = Shows::Middle;
        }
        if self.round.starts && self.probe.shows == Shows::End {
            self.probe.samples = false;
            self.probe.shows = Shows::Nothing;
            // Behind a pause too, in which the draft calls all samples the application's:
            // where round trips take seconds there are pauses in all cycles, and a rate
            // that has become too great would never be forgotten.
            if self.phase.cycles() {
                self.rate.advance();
            }
            if self.phase.cycles() && self.probe.cautious && !self.probe.was_too_high {
                self.begin_refill(arrived);
                return true;
            }
        }
        if !is_too_much(sample.lost, sample.flying) && self.long != UNBOUNDED {
            self.long = self.long.max(sample.flying);
            if self.phase == Phase::Up {
                self.raise_long(news);
            }
        }
        false
    }

    /// "ProbeInflightLongtermUpward".
    fn raise_long(&mut self, news: &News) {
        if !self.limited || self.window < self.long {
            return;
        }
        let probe = &mut self.probe;
        probe.acked = probe.acked.saturating_add(news.bytes);
        let times = probe.acked / probe.step;
        probe.acked %= probe.step;
        self.long = self.long.saturating_add(times.saturating_mul(self.mss)).min(UNBOUNDED - 1);
        if self.round.starts {
            probe.steepen(self.window, self.mss);
        }
    }
}
