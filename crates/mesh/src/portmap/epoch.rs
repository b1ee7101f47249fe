//! Detection of a gateway that lost its mappings (RFC 6887, section 8.5).

use std::time::Duration;

/// Tolerance for rounding, in seconds.
const ROUNDING: u64 = 2;
/// Tolerance for the drift of clocks: one part in 16.
const DRIFT: u64 = 16;

/// The gateway's epoch, and the time when it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    seconds: u32,
    at: Duration,
}

impl Epoch {
    pub(super) fn new(seconds: u32, at: Duration) -> Self {
        Self { seconds, at }
    }

    /// Returns whether the gateway ran without interruption, if its epoch is `seconds` now.
    pub(super) fn continues(self, seconds: u32, now: Duration) -> bool {
        if seconds.saturating_add(1) < self.seconds {
            return false;
        }
        let ours = now.saturating_sub(self.at).as_secs();
        let its = u64::from(seconds.saturating_sub(self.seconds));
        let matches = |slow: u64, fast: u64| slow + ROUNDING >= fast - fast / DRIFT;
        matches(ours, its) && matches(its, ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_continues_if_it_matches_the_elapsed_time() {
        let before = Epoch::new(1000, Duration::from_secs(50));
        for (seconds, now, continues) in [
            (1000, 50, true),
            (999, 50, true),
            (998, 50, false),
            (1100, 150, true),
            (1094, 150, true),
            (1091, 150, false),
            (1106, 150, true),
            (1110, 150, false),
            (0, 150, false),
            (20, 5000, false),
            (u32::MAX, 150, false),
        ] {
            let told = before.continues(seconds, Duration::from_secs(now));
            assert_eq!(told, continues, "{seconds} at {now}");
        }
    }
}
