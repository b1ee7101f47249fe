//! A rate limit: a burst of events, then one per interval (GCRA, ITU-T I.371).

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// The time at which the admitted events no longer count.
    paid: Duration,
}

impl Limit {
    /// Returns whether another event is admitted.
    pub(super) fn admit(&mut self, now: Duration, (burst, interval): (u32, Duration)) -> bool {
        let paid = self.paid.max(now);
        if paid - now > interval * (burst - 1) {
            return false;
        }
        self.paid = paid + interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_admitted_and_then_one_per_interval() {
        let second = Duration::from_secs(1);
        let mut limit = Limit::default();
        let mut admitted =
            |now| (0..100).filter(|_| limit.admit(second * now, (5, second))).count();
        assert_eq!([admitted(0), admitted(1), admitted(3), admitted(100)], [5, 1, 2, 5]);
    }
}
