//! Detects a standing queue: controlled delay (RFC 8289 section 5).

use std::time::Duration;

use wg::Time;

/// Time for which the wait may exceed the target: a distant sender needs this time to react to a
/// signal (RFC 8289 section 4.4).
const INTERVAL: Duration = Duration::from_millis(100);

/// The state of one queue.
#[derive(Debug)]
pub(crate) struct Codel {
    /// The acceptable wait.
    target: Duration,
    /// When the wait will have exceeded the target for one interval.
    above_until: Option<Time>,
    /// Time of the next signal. Set only while the queue is standing.
    next: Option<Time>,
    /// Signals since the queue began to stand, and the value of this count at that time.
    count: u32,
    first: u32,
    /// Time of the last packet.
    seen: Option<Time>,
    /// End of the last period in which the queue was standing.
    ended: Option<Time>,
}

impl Codel {
    /// Creates the state of a queue with an acceptable wait of `target`.
    pub(crate) fn new(target: Duration) -> Self {
        Self { target, above_until: None, next: None, count: 0, first: 0, seen: None, ended: None }
    }

    /// Whether to signal congestion to the sender of a packet that `waited`. `standing` is set if
    /// more packets of its queue wait.
    pub(crate) fn signals(&mut self, waited: Duration, standing: bool, now: Time) -> bool {
        // Without packets for an interval, the queue was empty.
        let silent = self.seen.is_some_and(|seen| now.since(seen) > INTERVAL);
        self.seen = Some(now);
        if waited < self.target || !standing || silent {
            self.above_until = None;
            if self.next.take().is_some() {
                self.ended = Some(now);
            }
            return false;
        }
        let above_until = *self.above_until.get_or_insert(now + INTERVAL);
        match self.next {
            None if now < above_until => return false,
            None => {
                // If the queue stands again soon, signals resume at the rate of the last period.
                let soon = self.ended.is_some_and(|ended| now.since(ended) < 16 * INTERVAL);
                let took = self.count.saturating_sub(self.first);
                self.count = if soon { took.max(1) } else { 1 };
                self.first = self.count;
                self.next = Some(now + self.spacing());
            }
            Some(next) if now < next => return false,
            Some(next) => {
                self.count = self.count.saturating_add(1);
                // Missed signals are not made up.
                self.next = Some(now.max(next + self.spacing()));
            }
        }
        true
    }

    /// Time until the next signal. It shrinks with the number of signals, because a sender's rate
    /// is proportional to the square root of its loss rate.
    fn spacing(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of signals in each interval of 100 ms. A packet leaves every millisecond after it
    /// `waited`.
    fn run(codel: &mut Codel, from: u64, waited: Duration, intervals: u64) -> Vec<usize> {
        let signals = |ms: &u64| codel.signals(waited, true, Time::from_nanos(ms * 1_000_000));
        let ends: Vec<u64> = (from..from + intervals * 100).filter(signals).collect();
        let within = |n| ends.iter().filter(|ms| (**ms - from) / 100 == n).count();
        (0..intervals).map(within).collect()
    }

    #[test]
    fn a_queue_above_the_target_for_less_than_an_interval_is_not_signalled() {
        let mut codel = Codel::new(Duration::from_millis(5));
        assert_eq!(run(&mut codel, 1, Duration::from_micros(4_900), 20), [0; 20]);
        assert_eq!(run(&mut codel, 2_001, Duration::from_millis(90), 1), [0]);
        assert_eq!(run(&mut codel, 2_101, Duration::ZERO, 1), [0]);
        assert_eq!(run(&mut codel, 2_201, Duration::from_millis(90), 1), [0]);
    }

    #[test]
    fn signals_to_a_standing_queue_become_more_frequent() {
        let mut codel = Codel::new(Duration::from_millis(5));
        let signals = run(&mut codel, 1, Duration::from_millis(6), 40);
        assert_eq!(signals[..3], [0, 1, 2]);
        // The n-th signal is 100 ms / sqrt(n) after the previous one, so (t / 200 ms)^2 signals are
        // sent in time t.
        let all: usize = signals.iter().sum();
        assert!((350..=410).contains(&all), "{all}: {signals:?}");
        assert!(signals[39] > signals[20] && signals[20] > signals[5], "{signals:?}");
    }

    #[test]
    fn the_last_packet_of_a_queue_is_never_signalled() {
        let mut codel = Codel::new(Duration::from_millis(5));
        run(&mut codel, 1, Duration::from_millis(50), 2);
        assert!(!codel.signals(Duration::from_millis(50), false, Time::from_nanos(300_000_000)));
    }

    #[test]
    fn a_queue_that_soon_stands_again_resumes_at_the_last_rate() {
        let mut codel = Codel::new(Duration::from_millis(5));
        run(&mut codel, 1, Duration::from_millis(50), 10);
        let count = codel.count;
        run(&mut codel, 1_001, Duration::ZERO, 1);
        run(&mut codel, 1_101, Duration::from_millis(50), 2);
        assert!(codel.count + 2 >= count && count > 10, "{} after {count}", codel.count);
    }
}
