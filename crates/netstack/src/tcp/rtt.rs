//! The round trip time and the retransmission timeout (RFC 6298).

use std::time::Duration;

/// The timeout before the first sample (RFC 6298 section 2.1).
const INITIAL: Duration = Duration::from_secs(1);
/// The smallest timeout. RFC 6298 has one second. Linux has 200 ms, and receivers delay
/// acknowledgements for less.
const MIN: Duration = Duration::from_millis(200);
/// The longest timeout, Linux' `TCP_RTO_MAX`.
const MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    /// The smallest sample.
    min: Option<Duration>,
}

impl Rtt {
    /// Adds a sample (RFC 6298 section 2). Of the data that was acknowledged together, `sample` is
    /// the time of the first sent and `least` that of the last sent.
    pub(super) fn sample(&mut self, sample: Duration, least: Duration) {
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

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The smallest round trip time.
    pub(super) fn min(&self) -> Option<Duration> {
        self.min
    }

    /// The timeout after `backoff` consecutive timeouts.
    pub(super) fn timeout(&self, backoff: u32) -> Duration {
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
