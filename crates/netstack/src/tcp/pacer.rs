//! Delays each super-packet until the previous ones have passed at the pacing rate.

use std::time::Duration;

use crate::time::Time;

/// Time by which a sender may be ahead of its rate. Without it the sender would sleep and wake for
/// each super-packet on fast paths.
const AHEAD: Duration = Duration::from_micros(500);
/// Part of a late wakeup that a paced sender makes up for, as on a busy machine. Otherwise the lost
/// time would lower the measured rate of the path, and the sender would become slower and slower.
const LATE: Duration = Duration::from_millis(100);
/// The same after waiting for an acknowledgement.
const WAITED: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Pacer {
    /// Time at which all sent data has passed.
    sent_until: Time,
    delayed_until: Option<Time>,
    /// Part of a delay that is made up for.
    late: Duration,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self { sent_until: Time::default(), delayed_until: None, late: Duration::ZERO }
    }

    /// End of the present delay; `None` if data may be sent.
    pub(super) fn delayed_until(&self) -> Option<Time> {
        self.delayed_until
    }

    /// Ends the delay if its time is over.
    pub(super) fn release(&mut self, now: Time) {
        self.delayed_until = self.delayed_until.filter(|until| *until > now);
    }

    /// Records that nothing more is sent for another reason than pacing: all data was sent, or the
    /// window is full.
    pub(super) fn note_idle(&mut self, is_all_sent: bool) {
        self.late = if is_all_sent { Duration::ZERO } else { WAITED };
    }

    /// Records data that was sent at a pacing rate of `rate` bytes per second.
    pub(super) fn note_sent(&mut self, bytes: u32, rate: f64, now: Time) {
        let takes = Duration::try_from_secs_f64(f64::from(bytes) / rate);
        // Limits the delay for extremely low rates.
        let takes = takes.unwrap_or(Duration::MAX).min(Duration::from_secs(1));
        self.sent_until = self.sent_until.max(now - self.late) + takes;
        self.late = LATE;
        if self.sent_until > now + AHEAD {
            self.delayed_until = Some(self.sent_until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Bytes that are sent within a second at 100 MB/s, by a sender that is polled every `turn`.
    fn sent(turn: Duration, piece: u32) -> f64 {
        let (mut pacer, mut now, mut bytes) = (Pacer::new(), Time::new(MS * 1000), 0.0);
        while now < Time::new(MS * 2000) {
            pacer.release(now);
            while pacer.delayed_until().is_none() {
                pacer.note_sent(piece, 100e6, now);
                bytes += f64::from(piece);
                assert!(bytes < 200e6, "it is never delayed");
            }
            now = now + turn;
        }
        bytes
    }

    #[test]
    fn the_rate_is_exact_for_frequent_and_for_late_wakeups() {
        for turn in [MS / 50, MS / 3, MS, 2 * MS, 10 * MS] {
            for piece in [1400, 65_000] {
                let bytes = sent(turn, piece) / 100e6;
                let short = turn.as_secs_f64();
                assert!((0.995 - short..1.002).contains(&bytes), "{bytes} every {turn:?}");
            }
        }
    }

    #[test]
    fn long_pauses_are_not_made_up_for() {
        for (is_all_sent, more) in [(true, 0), (false, 10)] {
            let mut pacer = Pacer::new();
            pacer.note_sent(1, 1e6, Time::default());
            pacer.note_idle(is_all_sent);
            let (now, mut burst) = (Time::new(MS * 9000), 0);
            while pacer.delayed_until().is_none() && burst < 1000 {
                pacer.note_sent(1000, 1e6, now);
                burst += 1;
            }
            assert_eq!(burst, 1 + more);
            assert_eq!(pacer.delayed_until(), Some(now + MS));
            pacer.release(now + MS / 2);
            assert!(pacer.delayed_until().is_some());
            pacer.release(now + MS);
            assert!(pacer.delayed_until().is_none());
        }
    }
}
