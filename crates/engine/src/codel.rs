//! When a queue has stood for too long: controlled delay (RFC 8289 section 5).

use std::time::Duration;

use wg::Time;

/// How long it may stand above that: as long as a sender far away takes to hear
/// of it (RFC 8289 section 4.4).
const INTERVAL: Duration = Duration::from_millis(100);

/// The state of one queue.
#[derive(Debug)]
pub(crate) struct Codel {
    /// The wait that the queue may stand at.
    target: Duration,
    /// When the wait will have been above the target for an interval.
    above_until: Option<Time>,
    /// When to signal next, while the queue stands.
    next: Option<Time>,
    /// How often was signalled since it stands, and what that was when it began to stand.
    count: u32,
    first: u32,
    /// When it was looked at last.
    seen: Option<Time>,
    /// When it stood last.
    ended: Option<Time>,
}

impl Codel {
    /// That of a queue which may stand at a wait of `target`.
    pub fn new(target: Duration) -> Self {
        Self { target, above_until: None, next: None, count: 0, first: 0, seen: None, ended: None }
    }

    /// Whether the sender of a packet that `waited` is to be told of congestion.
    /// `standing` says that more of its queue waits behind it.
    pub fn signals(&mut self, waited: Duration, standing: bool, now: Time) -> bool {
        // Who says nothing for so long has no queue.
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
                // Soon after the last time it goes on with as many as that one took.
                let soon = self.ended.is_some_and(|ended| now.since(ended) < 16 * INTERVAL);
                let took = self.count.saturating_sub(self.first);
                self.count = if soon { took.max(1) } else { 1 };
                self.first = self.count;
                self.next = Some(now + self.spacing());
            }
            Some(next) if now < next => return false,
            Some(next) => {
                self.count = self.count.saturating_add(1);
                // What was late is not made up for.
                self.next = Some(now.max(next + self.spacing()));
            }
        }
        true
    }

    /// The time to the next signal: ever shorter, since a sender's rate goes by
    /// the square root of that of its losses.
    fn spacing(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals in each 100 ms of a queue whose packets leave every millisecond
    /// after they `waited`.
    fn run(codel: &mut Codel, from: u64, waited: Duration, intervals: u64) -> Vec<usize> {
        let signals = |ms: &u64| codel.signals(waited, true, Time::from_nanos(ms * 1_000_000));
        let ends: Vec<u64> = (from..from + intervals * 100).filter(signals).collect();
        let within = |n| ends.iter().filter(|ms| (**ms - from) / 100 == n).count();
        (0..intervals).map(within).collect()
    }

    #[test]
    fn a_queue_below_the_target_or_above_it_for_less_than_an_interval_is_left_alone() {
        let mut codel = Codel::new(Duration::from_millis(5));
        assert_eq!(run(&mut codel, 1, Duration::from_micros(4_900), 20), [0; 20]);
        assert_eq!(run(&mut codel, 2_001, Duration::from_millis(90), 1), [0]);
        assert_eq!(run(&mut codel, 2_101, Duration::ZERO, 1), [0]);
        assert_eq!(run(&mut codel, 2_201, Duration::from_millis(90), 1), [0]);
    }

    #[test]
    fn a_queue_that_stands_is_signalled_ever_more_often() {
        let mut codel = Codel::new(Duration::from_millis(5));
        let signals = run(&mut codel, 1, Duration::from_millis(6), 40);
        assert_eq!(signals[..3], [0, 1, 2]);
        // The n-th comes 100 ms / sqrt(n) after the one before: (t / 200 ms)^2 in t.
        let all: usize = signals.iter().sum();
        assert!((350..=410).contains(&all), "{all}: {signals:?}");
        assert!(signals[39] > signals[20] && signals[20] > signals[5], "{signals:?}");
    }

    #[test]
    fn the_last_of_a_queue_is_never_signalled() {
        let mut codel = Codel::new(Duration::from_millis(5));
        run(&mut codel, 1, Duration::from_millis(50), 2);
        assert!(!codel.signals(Duration::from_millis(50), false, Time::from_nanos(300_000_000)));
    }

    #[test]
    fn what_stands_again_soon_is_signalled_where_it_ended() {
        let mut codel = Codel::new(Duration::from_millis(5));
        run(&mut codel, 1, Duration::from_millis(50), 10);
        let count = codel.count;
        run(&mut codel, 1_001, Duration::ZERO, 1);
        run(&mut codel, 1_101, Duration::from_millis(50), 2);
        assert!(codel.count + 2 >= count && count > 10, "{} after {count}", codel.count);
    }
}
