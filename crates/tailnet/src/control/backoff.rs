//! When to try again.

use std::time::Duration;

/// Waits that grow with the square of the failures, each by chance shorter or longer by half, so
/// that the members of a coordinator that was away do not come back at once.
#[derive(Clone, Debug)]
pub struct Backoff {
    unit: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// For connections: 10 ms, 40 ms, .., 30 s at most (tailscale `logtail/backoff`).
    pub fn connections() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_secs(30))
    }

    /// For what the coordinator refused: 2 s, 8 s, .., 5 min at most.
    pub fn refusals() -> Self {
        Self::new(Duration::from_secs(2), Duration::from_secs(300))
    }

    /// The n-th wait is `n² · unit`, and none is longer than `longest`.
    pub fn new(unit: Duration, longest: Duration) -> Self {
        Self { unit, longest, failures: 0 }
    }

    /// It worked: the next wait is the shortest.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// It failed: how long to wait. `random` is any number, evenly spread.
    pub fn handle_failure(&mut self, random: u32) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = self.unit.saturating_mul(self.failures.saturating_pow(2));
        // Of what is allowed at most, two thirds: with half of that again by chance it is all.
        let wait = wait.min(self.longest * 2 / 3);
        wait / 2 + wait.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_chance_is_half_of_each() {
        let ends = |failures: u32, random| {
            let mut backoff = Backoff::connections();
            (1..=failures).map(|_| backoff.handle_failure(random)).last().unwrap()
        };
        let ms = Duration::from_millis;
        assert_eq!((ends(1, 0), ends(1, u32::MAX)), (ms(5), ms(15)));
        assert_eq!((ends(3, 0), ends(3, u32::MAX)), (ms(45), ms(135)));
        assert_eq!((ends(1000, 0), ends(1000, u32::MAX)), (ms(10_000), ms(30_000)));
    }

    #[test]
    fn after_a_success_it_begins_anew() {
        let mut backoff = Backoff::refusals();
        let first = backoff.handle_failure(7);
        assert!(backoff.handle_failure(7) > first);
        backoff.reset();
        assert_eq!(backoff.handle_failure(7), first);
    }
}
