//! Load of the data plane: packets in a batch, and the wait of the oldest packet. The one thread
//! that processes a batch counts once for it. Any thread may read.

use std::{
    iter,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counters of one data plane.
#[derive(Debug)]
pub struct Load {
    /// Datagrams in a batch to the network.
    pub outbound: Histogram,
    /// Data messages in a batch from the network.
    pub inbound: Histogram,
    /// Wait of the oldest packet from the IP side when a round began, in microseconds.
    pub queued: Histogram,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            outbound: Histogram::new(&[1, 2, 4, 8, 16, 32, 64, 128, 256]),
            inbound: Histogram::new(&[1, 2, 4, 8, 16, 32, 64, 128, 256, 1024]),
            queued: Histogram::new(&[10, 100, 500, 1_000, 5_000, 20_000, 100_000]),
        }
    }
}

/// A histogram of sizes. Only one thread counts, so plain loads and stores suffice. Any thread may
/// read.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One count more than bounds. The last is for sizes above all bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The contents of a histogram at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Each bound, with the number of sizes up to it.
    pub buckets: Vec<(u64, u64)>,
    /// Number of sizes.
    pub count: u64,
    /// Sum of the sizes.
    pub sum: u64,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        let counts = iter::repeat_with(AtomicU64::default).take(bounds.len() + 1).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(crate) fn count(&self, size: u64) {
        let index = self.bounds.partition_point(|bound| *bound < size);
        add(&self.counts[index], 1);
        add(&self.sum, size);
    }

    pub(crate) fn count_time(&self, time: Duration) {
        self.count(time.as_micros() as u64);
    }

    /// Returns the present contents. A size that is being counted may be included in only some of
    /// the numbers.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let sum = self.sum.load(Ordering::Relaxed);
        let mut count = 0;
        let mut counts = self.counts.iter().map(|each| {
            count += each.load(Ordering::Relaxed);
            count
        });
        let buckets = self.bounds.iter().copied().zip(counts.by_ref()).collect();
        let count = counts.last().unwrap_or(0);
        HistogramSnapshot { buckets, count, sum }
    }
}

/// Cheaper than `fetch_add`. No other thread writes.
fn add(to: &AtomicU64, value: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_counts_for_each_bound_up_to_which_it_is() {
        let histogram = Histogram::new(&[1, 4]);
        for size in [0, 1, 2, 4, 5, 100] {
            histogram.count(size);
        }
        let counted = HistogramSnapshot { buckets: vec![(1, 2), (4, 4)], count: 6, sum: 112 };
        assert_eq!(histogram.snapshot(), counted);
    }

    #[test]
    fn a_time_is_counted_in_microseconds() {
        let load = Load::default();
        load.queued.count_time(Duration::from_millis(5));
        load.queued.count_time(Duration::from_secs(1));
        let counted = load.queued.snapshot();
        assert_eq!((counted.count, counted.sum), (2, 1_005_000));
        assert_eq!(counted.buckets[4], (5_000, 1));
    }
}
