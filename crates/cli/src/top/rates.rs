//! Rates of counters between two samples.

use config::uapi::{LoadStats, Sum};
use wg::config::PeerState;

/// The time between two samples.
#[derive(Clone, Copy)]
pub(super) struct Span {
    seconds: f64,
}

impl Span {
    /// From one time to another, in nanoseconds; never zero, so that it can be a divisor.
    pub(super) fn between(before: u64, after: u64) -> Self {
        Self { seconds: after.saturating_sub(before).max(1) as f64 / 1e9 }
    }

    /// The rate of a counter. A counter that has decreased was reset by a new daemon.
    pub(super) fn rate(self, before: u64, after: u64) -> f64 {
        after.checked_sub(before).unwrap_or(after) as f64 / self.seconds
    }
}

/// The rates of a peer, in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub received: f64,
    pub sent: f64,
}

impl Traffic {
    /// The rates of one peer; a new one starts from zero.
    pub(super) fn of(span: Span, before: &[PeerState], peer: &PeerState) -> Self {
        let same = before.iter().find(|old| old.public_key == peer.public_key);
        let (rx, tx) = same.map_or((0, 0), |old| (old.rx_bytes, old.tx_bytes));
        Self {
            received: 8.0 * span.rate(rx, peer.rx_bytes),
            sent: 8.0 * span.rate(tx, peer.tx_bytes),
        }
    }

    /// The sum of both rates.
    pub(super) fn both(self) -> f64 {
        self.received + self.sent
    }
}

/// Packets per second and packets per batch of one direction.
pub(super) fn batches(span: Span, before: Sum, after: Sum) -> (f64, Option<f64>) {
    (span.rate(before.sum, after.sum), mean(before, after))
}

/// The mean time that the oldest packet of a round waited, in milliseconds.
pub(super) fn queue_delay(before: &LoadStats, after: &LoadStats) -> Option<f64> {
    mean(before.queued, after.queued).map(|micros| micros / 1e3)
}

/// The mean time until a handshake was answered, in milliseconds. It counts since the daemon's start,
/// because handshakes are rare.
pub(super) fn handshake_latency(load: &LoadStats) -> Option<f64> {
    mean(Sum::default(), load.handshakes).map(|micros| micros / 1e3)
}

/// The mean of the values that were added between two samples.
fn mean(before: Sum, after: Sum) -> Option<f64> {
    let difference = |before: u64, after: u64| after.checked_sub(before).unwrap_or(after);
    let (count, sum) = (difference(before.count, after.count), difference(before.sum, after.sum));
    (count > 0).then(|| sum as f64 / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(count: u64, sum: u64) -> Sum {
        Sum { count, sum }
    }

    #[test]
    fn rate_of_a_reset_counter_starts_from_zero() {
        let span = Span::between(1_000_000_000, 3_000_000_000);
        assert_eq!((span.rate(10, 30), span.rate(30, 10)), (10.0, 5.0));
        assert!(Span::between(5, 5).rate(0, 0) == 0.0, "no time passed");
    }

    #[test]
    fn mean_without_batches_is_absent() {
        let span = Span::between(0, 1_000_000_000);
        assert_eq!(batches(span, sum(10, 100), sum(14, 300)), (200.0, Some(50.0)));
        assert_eq!(batches(span, sum(10, 100), sum(10, 100)), (0.0, None));
        let load = |queued| LoadStats { queued, ..LoadStats::default() };
        assert_eq!(queue_delay(&load(sum(0, 0)), &load(sum(4, 2_000))), Some(0.5));
    }
}
