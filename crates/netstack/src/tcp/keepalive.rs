//! Keepalive probes to a silent peer (RFC 9293 section 3.8.4, RFC 1122 section 4.2.3.6). They are
//! off by default. None are sent while data is unacknowledged, because retransmissions then detect
//! a lost peer.
//!
//! ```text
//!   received .. idle .. probe .. interval .. probe .. interval .. failed
//! ```

use std::time::Duration;

use super::{Connection, Failure, State};
use crate::time::Time;

/// Settings of keepalive probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time to wait for each answer.
    pub interval: Duration,
    /// Unanswered probes after which the connection fails. At least one is sent.
    pub probes: u32,
}

/// State of keepalive probes.
#[derive(Debug)]
pub(super) struct KeepaliveState {
    settings: Keepalive,
    /// Time at which a segment was received last.
    last_received: Time,
    /// Time of the last probe, and number of probes since a segment was received.
    probed: Option<(Time, u32)>,
}

impl KeepaliveState {
    fn due(&self) -> Time {
        match self.probed {
            None => self.last_received + self.settings.idle,
            Some((at, _)) => at + self.settings.interval,
        }
    }
}

impl Connection {
    /// Enables or disables keepalive probes.
    pub(crate) fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Time) {
        self.keepalive_state =
            keepalive.map(|settings| KeepaliveState { settings, last_received: now, probed: None });
        self.replies.probe = false;
    }

    /// The settings; `None` if probes are off.
    pub(crate) fn keepalive(&self) -> Option<Keepalive> {
        self.keepalive_state.as_ref().map(|keepalive_state| keepalive_state.settings)
    }

    /// Records that a segment was received.
    pub(super) fn note_received(&mut self, now: Time) {
        if let Some(keepalive_state) = &mut self.keepalive_state {
            (keepalive_state.last_received, keepalive_state.probed) = (now, None);
            self.replies.probe = false;
        }
    }

    /// Time of the next probe, or of the failure.
    pub(super) fn keepalive_due(&self) -> Option<Time> {
        // Other states have their own timers.
        let open = matches!(self.state, State::Established | State::CloseWait | State::FinWait2);
        let keepalive_state = self.keepalive_state.as_ref().filter(|_| open && !self.is_orphan)?;
        self.tx.is_all_acknowledged().then(|| keepalive_state.due())
    }

    pub(super) fn handle_keepalive(&mut self, now: Time) {
        if self.keepalive_due().is_none_or(|due| due > now) {
            return;
        }
        let Some(keepalive_state) = &mut self.keepalive_state else { return };
        let count = keepalive_state.probed.map_or(0, |(_, count)| count);
        if count >= keepalive_state.settings.probes.max(1) {
            // The peer may only have been unreachable. It then learns that the connection has
            // ended.
            self.fail(Failure::TimedOut);
            self.replies.reset = true;
            return;
        }
        keepalive_state.probed = Some((now, count + 1));
        self.replies.probe = true;
    }
}
