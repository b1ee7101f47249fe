//! Whether a peer that has nothing to say is still there (RFC 9293 section 3.8.4, RFC 1122
//! section 4.2.3.6): off unless asked for, and silent while anything waits for its
//! acknowledgement, which the retransmissions look after.
//!
//! ```text
//!   heard .. idle .. probe .. interval .. probe .. interval .. gone
//! ```

use std::time::Duration;

use super::{Connection, Failure, State};
use crate::time::Time;

/// When a silent peer is asked whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long nothing has to come before it is asked.
    pub idle: Duration,
    /// How long each answer is waited for.
    pub interval: Duration,
    /// Questions without an answer after which it is gone; one at least.
    pub probes: u32,
}

/// What a connection knows of its peer's life.
#[derive(Debug)]
pub(super) struct Pulse {
    wanted: Keepalive,
    /// When something of the peer came last.
    heard: Time,
    /// When it was asked last, and how often since it was heard.
    asked: Option<(Time, u32)>,
}

impl Pulse {
    fn due(&self) -> Time {
        match self.asked {
            None => self.heard + self.wanted.idle,
            Some((at, _)) => at + self.wanted.interval,
        }
    }
}

impl Connection {
    /// Has the peer asked whether it is there, or not any more.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Time) {
        self.pulse = keepalive.map(|wanted| Pulse { wanted, heard: now, asked: None });
        self.replies.probe = false;
    }

    /// Whether the peer is asked when it is silent.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.pulse.as_ref().map(|pulse| pulse.wanted)
    }

    /// Something of the peer came.
    pub(super) fn note_heard(&mut self, now: Time) {
        if let Some(pulse) = &mut self.pulse {
            (pulse.heard, pulse.asked) = (now, None);
            self.replies.probe = false;
        }
    }

    /// When the peer is to be asked, or is gone.
    pub(super) fn keepalive_due(&self) -> Option<Time> {
        // Whoever ended both halves waits for a time of its own.
        let open = matches!(self.state, State::Established | State::CloseWait | State::FinWait2);
        let pulse = self.pulse.as_ref().filter(|_| open && !self.deaf)?;
        self.tx.is_at_rest().then(|| pulse.due())
    }

    pub(super) fn handle_keepalive(&mut self, now: Time) {
        if self.keepalive_due().is_none_or(|due| due > now) {
            return;
        }
        let Some(pulse) = &mut self.pulse else { return };
        let count = pulse.asked.map_or(0, |(_, count)| count);
        if count >= pulse.wanted.probes.max(1) {
            // It may only have been away: then it hears that this has ended.
            self.fail(Failure::TimedOut);
            self.replies.reset = true;
            return;
        }
        pulse.asked = Some((now, count + 1));
        self.replies.probe = true;
    }
}
