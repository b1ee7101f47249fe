//! The round trip time and the retransmission time-out (RFC 6298).

use std::time::Duration;

/// Before the first sample (RFC 6298 section 2.1).
const INITIAL: Duration = Duration::from_secs(1);
/// The least time-out. RFC 6298 says a second; Linux has had 200 ms for long, and a
/// receiver that delays acknowledgements does so for less.
const MIN: Duration = Duration::from_millis(200);
/// The longest time-out, Linux' `TCP_RTO_MAX`.
const MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    /// The least sample.
    min: Option<Duration>,
}

impl Rtt {
    /// RFC 6298 section 2. Of what was acknowledged together, `least` is the time of what
    /// was sent last, and `sample` of what was sent first.
    pub fn sample(&mut self, sample: Duration, least: Duration) {
        self.min = Some(self.min.map_or(least, |min| min.min(least)));
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// The smoothed round trip time.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The least round trip time that was seen.
    pub fn min(&self) -> Option<Duration> {
        self.min
    }

    /// The time-out after it ran out `backoff` times in a row.
    pub fn timeout(&self, backoff: u32) -> Duration {
        let base = self.smoothed.map_or(INITIAL, |smoothed| smoothed + self.variation * 4);
        (base.max(MIN) * (1 << backoff.min(10))).min(MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_time_out_follows_rfc_6298() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(0), INITIAL);
        rtt.sample(400 * MS, 400 * MS);
        assert_eq!(rtt.timeout(0), 400 * MS + 4 * 200 * MS);
        rtt.sample(480 * MS, 390 * MS);
        assert_eq!(rtt.smoothed(), Some(410 * MS));
        assert_eq!(rtt.timeout(0), 410 * MS + 4 * 170 * MS);
        assert_eq!(rtt.timeout(1), 2 * (410 * MS + 4 * 170 * MS));
        assert_eq!(rtt.timeout(60), MAX);
        assert_eq!(rtt.min(), Some(390 * MS));
        for _ in 0..100 {
            rtt.sample(MS, MS);
        }
        assert_eq!(rtt.timeout(0), MIN);
    }
}
