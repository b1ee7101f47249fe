//! A proven direct path, and the doubt about it.

use std::{net::SocketAddr, time::Duration};

use crate::peer_paths::{
    candidate::Entry,
    rank::Rank,
    timing::{DOUBT_LATENCY, DOUBT_PING, HEARTBEAT, HEARTBEAT_RETRY, SETTLING, TRUST},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    pub addr: SocketAddr,
    pub since: Duration,
    pub latency: Duration,
    /// The last sign of life.
    pub alive: Duration,
    pub pinged: Duration,
    pub doubt: Option<Doubt>,
}

/// The doubt that a path still works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    pub since: Duration,
    /// The minimum duration.
    pub patience: Duration,
    /// Whether we may have moved.
    pub moved: bool,
}

impl Direct {
    /// Creates the path to a candidate that answered.
    pub(super) fn new(entry: &Entry, now: Duration) -> Self {
        Self {
            addr: entry.addr,
            since: now,
            latency: entry.latency,
            alive: entry.pong.unwrap_or(now),
            pinged: entry.pinged.unwrap_or(now),
            doubt: None,
        }
    }

    /// Returns whether the answer to the first ping of a doubt is overdue.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        self.doubt.is_some_and(|doubt| now >= doubt.since + self.latency * 2)
    }

    pub(super) fn replaces(&self, used: &Self, now: Duration) -> bool {
        if used.is_late(now) {
            return true;
        }
        let rank = |path: &Self| Rank { addr: path.addr, latency: path.latency };
        rank(self).replaces(rank(used), now >= used.since + SETTLING)
    }

    /// Received packets were not processed for this time.
    pub(super) fn handle_stall(&mut self, time: Duration) {
        self.alive += time;
        if let Some(doubt) = &mut self.doubt {
            doubt.since += time;
        }
    }

    /// Returns the time at which the path is lost without a sign of life.
    pub(super) fn ends(&self) -> Duration {
        let trust = self.alive + TRUST;
        let answer = self.latency.min(DOUBT_LATENCY) * 3;
        self.doubt.map_or(trust, |doubt| trust.min(doubt.since + doubt.patience.max(answer)))
    }

    pub(super) fn next_ping(&self) -> Duration {
        let pause = match self.doubt {
            Some(_) => DOUBT_PING,
            None if self.alive < self.pinged => HEARTBEAT_RETRY.max(self.latency * 2),
            None => HEARTBEAT,
        };
        self.pinged + pause
    }
}
