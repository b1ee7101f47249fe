//! The minimum round trip time, and the pauses that measure it ("ProbeRTT").

use std::time::Duration;

use super::{Bbr, Phase};
use crate::{
    tcp::{congestion_control::AckEvent, delivery::Delivery, seq::Seq},
    time::Time,
};

/// Lifetime of the minimum ("MinRTTFilterLen").
const AGE: Duration = Duration::from_secs(10);
/// Time after the last measurement of a minimum until the next pause ("ProbeRTTInterval").
const INTERVAL: Duration = Duration::from_secs(5);
/// Duration of a pause ("ProbeRTTDuration").
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct MinRtt {
    rtt: Option<Duration>,
    at: Time,
    /// The minimum since the last pause, or since little data was in flight.
    recent: Option<Duration>,
    recent_at: Time,
    /// Whether a pause is due.
    expired: bool,
    /// End of this pause. Set once little data is in flight.
    until: Option<Time>,
    /// Whether a round trip has passed in this pause.
    round: bool,
    /// Whether the connection restarts from idle. The idle time replaces a pause.
    pub restarts: bool,
}

impl MinRtt {
    pub(super) fn new(smoothed: Option<Duration>, now: Time) -> Self {
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

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    pub(super) fn handle(&mut self, rtt: Option<Duration>, now: Time) {
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
    pub(super) fn check_probe_rtt(&mut self, event: &AckEvent, delivery: &mut Delivery) {
        let arrived = delivery.arrived();
        let due = self.min_rtt.expired && !self.min_rtt.restarts;
        if self.phase != Phase::ProbeRtt && due {
            self.save_window();
            self.phase = Phase::ProbeRtt;
            self.min_rtt.until = None;
            self.probe.stop();
            self.round.begin(arrived);
        }
        if self.phase == Phase::ProbeRtt {
            // The pause limits the delivery rate.
            delivery.note_limited(event.in_flight);
            self.pause(event, arrived);
        }
        self.min_rtt.restarts = false;
    }

    fn pause(&mut self, event: &AckEvent, arrived: Seq) {
        if self.min_rtt.until.is_none() {
            if event.in_flight <= self.probe_rtt_window() {
                self.min_rtt.until = Some(event.now + PAUSE);
                self.min_rtt.round = false;
                self.round.begin(arrived);
            }
            return;
        }
        self.min_rtt.round |= self.round.starts;
        if self.min_rtt.round {
            self.end_probe_rtt(arrived, event.now);
        }
    }

    /// "Exiting ProbeRTT", if its time is over.
    pub(super) fn end_probe_rtt(&mut self, arrived: Seq, now: Time) {
        if self.min_rtt.until.is_none_or(|until| now <= until) {
            return;
        }
        self.min_rtt.recent_at = now;
        self.window.bytes = self.window.bytes.max(self.window.prior);
        self.short_term = super::ShortTerm::NONE;
        if self.full.reached {
            self.begin_down(arrived, now);
            self.begin_cruise();
        } else {
            self.phase = Phase::Startup;
        }
    }

    /// Limit of bytes in flight during a pause.
    pub(super) fn probe_rtt_window(&self) -> u32 {
        self.product(Phase::ProbeRtt.window_gain()).max(self.least())
    }
}
