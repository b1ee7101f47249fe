//! Delays between retries.

use std::time::Duration;

/// The time over which nodes spread their reconnects after a coordinator closed all connections.
/// The data plane is not affected by the wait.
const SPREAD: Duration = Duration::from_secs(2);

/// Delays that grow with the square of the number of failures. Each is changed randomly by up to
/// half, so that the nodes of a restarted coordinator do not reconnect at the same time.
#[derive(Clone, Debug)]
pub struct Backoff {
    unit: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// For connections: 10 ms, 40 ms, .., at most 30 s (tailscale `logtail/backoff`).
    pub fn connections() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_secs(30))
    }

    /// For requests that the coordinator refused: 2 s, 8 s, .., at most 5 min.
    pub fn refusals() -> Self {
        Self::new(Duration::from_secs(2), Duration::from_secs(300))
    }

    /// The n-th delay is `n² · unit`, at most `longest`.
    pub fn new(unit: Duration, longest: Duration) -> Self {
        Self { unit, longest, failures: 0 }
    }

    /// The attempt succeeded: the next delay is the shortest.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// An established connection ended. Returns the delay until the next attempt.
    pub fn handle_loss(&mut self, random: u32) -> Duration {
        self.reset();
        SPREAD.mul_f64(chance(random))
    }

    /// The server requested a delay. Returns at least that delay, and up to half of it more, chosen
    /// randomly.
    pub fn handle_busy(&mut self, wanted: Duration, random: u32) -> Duration {
        let wanted = wanted + wanted.mul_f64(chance(random) / 2.0);
        self.handle_failure(random).max(wanted)
    }

    /// The attempt failed. Returns the delay. `random` is uniformly distributed.
    pub fn handle_failure(&mut self, random: u32) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = self.unit.saturating_mul(self.failures.saturating_pow(2));
        // The random part adds up to half of this, so that `longest` is the maximum.
        let wait = wait.min(self.longest * 2 / 3);
        wait / 2 + wait.mul_f64(chance(random))
    }
}

/// Returns a number from 0 to 1.
fn chance(random: u32) -> f64 {
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_vary_by_half() {
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
    fn reset_restores_the_first_delay() {
        let mut backoff = Backoff::refusals();
        let first = backoff.handle_failure(7);
        assert!(backoff.handle_failure(7) > first);
        backoff.reset();
        assert_eq!(backoff.handle_failure(7), first);
    }

    #[test]
    fn requested_delay_is_respected_and_randomly_longer() {
        let wait = |random| Backoff::connections().handle_busy(Duration::from_secs(8), random);
        assert_eq!(wait(0), Duration::from_secs(8));
        assert_eq!(wait(u32::MAX), Duration::from_secs(12));
    }

    /// 10,000 nodes lose their coordinator for the time `away`. Returns the largest number of nodes
    /// that connect within 100 ms, and the average number of failed attempts.
    fn storm(away: Duration) -> (usize, f64) {
        const MEMBERS: u32 = 10_000;
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 32) as u32
        };
        let (mut arrivals, mut in_vain) = (std::collections::BTreeMap::new(), 0u32);
        for _ in 0..MEMBERS {
            let mut backoff = Backoff::connections();
            let mut at = backoff.handle_loss(random());
            while at < away {
                in_vain += 1;
                at += backoff.handle_failure(random());
            }
            *arrivals.entry(at.as_millis() / 100).or_insert(0usize) += 1;
        }
        let fullest = arrivals.into_values().max().unwrap_or_default();
        (fullest, f64::from(in_vain) / f64::from(MEMBERS))
    }

    #[test]
    fn reconnects_after_a_restart_of_the_coordinator_are_spread() {
        for seconds in [0, 1, 3, 10, 60] {
            let (fullest, in_vain) = storm(Duration::from_secs(seconds));
            // Nodes that already failed retry often: after an outage of one second a quarter of
            // them connects within 100 ms.
            assert!(fullest < 3000, "{fullest} of 10,000 at once after {seconds} s");
            assert!(in_vain < 30.0, "{in_vain} attempts each in {seconds} s");
        }
    }
}
