//! When the next super-packet may leave: not sooner than the last one is through at the
//! rate of the path.

use std::time::Duration;

use crate::time::Time;

/// How far ahead of its rate a sender may be before it waits, so that it does not sleep and
/// wake for each super-packet where the path takes one in less.
const AHEAD: Duration = Duration::from_micros(500);
/// How much of a delay is made up for: who is woken late sends more at once.
const LATE: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub struct Pacer {
    /// When what was sent is through.
    through: Time,
    held: Option<Time>,
}

impl Pacer {
    /// Until when nothing may be sent.
    pub fn held(&self) -> Option<Time> {
        self.held
    }

    /// Time has passed.
    pub fn release(&mut self, now: Time) {
        self.held = self.held.filter(|until| *until > now);
    }

    /// Bytes were sent, at `rate` bytes a second.
    pub fn note_sent(&mut self, bytes: u32, rate: f64, now: Time) {
        let takes = Duration::try_from_secs_f64(f64::from(bytes) / rate);
        // No path is so slow that its rate cannot be told.
        let takes = takes.unwrap_or(Duration::MAX).min(Duration::from_secs(1));
        self.through = self.through.max(now - LATE) + takes;
        if self.through > now + AHEAD {
            self.held = Some(self.through);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Bytes that leave until `end` at 100 MB a second, by one who looks every `turn`.
    fn sent(turn: Duration, piece: u32, end: Time) -> f64 {
        let (mut pacer, mut now, mut bytes) = (Pacer::default(), Time::new(MS * 1000), 0.0);
        while now < end {
            pacer.release(now);
            while pacer.held().is_none() {
                pacer.note_sent(piece, 100e6, now);
                bytes += f64::from(piece);
            }
            now = now + turn;
        }
        bytes
    }

    #[test]
    fn the_rate_is_kept_by_who_is_woken_often_and_by_who_is_woken_late() {
        for turn in [MS / 50, MS / 3, MS, 2 * MS] {
            for piece in [1400, 65_000] {
                let bytes = sent(turn, piece, Time::new(MS * 2000));
                assert!((99.5e6..100.8e6).contains(&bytes), "{bytes} every {turn:?}");
            }
        }
    }

    #[test]
    fn what_was_not_sent_for_long_is_not_made_up_for() {
        let mut pacer = Pacer::default();
        pacer.note_sent(1, 1e6, Time::default());
        let (now, mut burst) = (Time::new(MS * 9000), 0);
        while pacer.held().is_none() {
            pacer.note_sent(1000, 1e6, now);
            burst += 1;
        }
        assert_eq!(burst, 3, "two late, one ahead");
        assert_eq!(pacer.held(), Some(now + MS));
        pacer.release(now + MS / 2);
        assert!(pacer.held().is_some());
        pacer.release(now + MS);
        assert!(pacer.held().is_none());
    }
}
