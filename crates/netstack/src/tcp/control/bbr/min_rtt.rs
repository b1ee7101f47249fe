//! The least round trip time, and the pauses in which it is seen ("ProbeRTT").

use std::time::Duration;

use super::{Bbr, Phase};
use crate::{
    tcp::{control::News, delivery::Delivery, seq::Seq},
    time::Time,
};

/// How long the least is believed ("MinRTTFilterLen").
const AGE: Duration = Duration::from_secs(10);
/// How long after it was seen last it is looked for ("ProbeRTTInterval").
const INTERVAL: Duration = Duration::from_secs(5);
/// How long little flies ("ProbeRTTDuration").
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct MinRtt {
    rtt: Option<Duration>,
    at: Time,
    /// The least since the last pause, or the last time that little was on its way.
    recent: Option<Duration>,
    recent_at: Time,
    /// Whether it is time for a pause.
    expired: bool,
    /// Until when this pause goes on, once little flies.
    until: Option<Time>,
    /// Whether a round trip has passed in it.
    round: bool,
    /// Whether the connection was silent until now, which is as good as a pause.
    pub restarts: bool,
}

impl MinRtt {
    pub fn new(smoothed: Option<Duration>, now: Time) -> Self {
        Self {
            rtt: smoothed,
            at: now,
            recent: None,
            recent_at: now,
            expired: false,
            until: None,
            round: false,
            restarts: false,
        }
    }

    pub fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    pub fn handle(&mut self, rtt: Option<Duration>, now: Time) {
        self.expired = now > self.recent_at + INTERVAL;
        if let Some(rtt) = rtt
            && (self.expired || self.recent.is_none_or(|recent| rtt < recent))
        {
            (self.recent, self.recent_at) = (Some(rtt), now);
        }
        let Some(recent) = self.recent else { return };
        if now > self.at + AGE || self.rtt.is_none_or(|least| recent < least) {
            (self.rtt, self.at) = (Some(recent), self.recent_at);
        }
    }
}

impl Bbr {
    pub(super) fn check_probe_rtt(&mut self, news: &News, delivery: &mut Delivery) {
        let arrived = delivery.arrived();
        let due = self.min_rtt.expired && !self.min_rtt.restarts;
        if self.phase != Phase::ProbeRtt && due {
            self.note_good();
            self.phase = Phase::ProbeRtt;
            self.min_rtt.until = None;
            self.probe.stop();
            self.round.begin(arrived);
        }
        if self.phase == Phase::ProbeRtt {
            // What is delivered now is little, because little is sent.
            delivery.note_limited(news.flying);
            self.pause(news, arrived);
        }
        self.min_rtt.restarts = false;
    }

    fn pause(&mut self, news: &News, arrived: Seq) {
        if self.min_rtt.until.is_none() {
            if news.flying <= self.probe_rtt_window() {
                self.min_rtt.until = Some(news.now + PAUSE);
                self.min_rtt.round = false;
                self.round.begin(arrived);
            }
            return;
        }
        self.min_rtt.round |= self.round.starts;
        if self.min_rtt.round {
            self.end_probe_rtt(arrived, news.now);
        }
    }

    /// "Exiting ProbeRTT", when it is time.
    pub(super) fn end_probe_rtt(&mut self, arrived: Seq, now: Time) {
        if self.min_rtt.until.is_none_or(|until| now <= until) {
            return;
        }
        self.min_rtt.recent_at = now;
        self.window = self.window.max(self.good);
        self.short = super::Short::NONE;
        if self.full.reached {
            self.begin_down(arrived, now);
            self.begin_cruise();
        } else {
            self.phase = Phase::Startup;
        }
    }

    /// What flies in a pause at most.
    pub(super) fn probe_rtt_window(&self) -> u32 {
        self.product(Phase::ProbeRtt.window_gain()).max(self.least())
    }
}
