//! What the data plane had to do at a time: packets of a batch, and how long the oldest
//! waited. HistogramSnapshot once a batch by the one thread that works on it, and read by whoever
//! wants to know.

use std::{
    iter,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counters of one data plane.
#[derive(Debug)]
pub struct Load {
    /// Datagrams of a batch to the network.
    pub outbound: Histogram,
    /// Messages of data of a batch from the network.
    pub inbound: Histogram,
    /// How long the oldest packet from the IP side stood in the queue when a round
    /// began, in microseconds.
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

/// How often something had which size. One thread counts, so that it takes no more
/// than loads and stores; any may read.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds: what is beyond the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What a histogram held when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Each bound, and how many were at most that.
    pub buckets: Vec<(u64, u64)>,
    /// How many there were.
    pub count: u64,
    /// Their sum.
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

    /// What was counted so far. It may be one ahead in one number of what it is in
    /// another.
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

/// Cheaper than `fetch_add`, as no other thread writes.
fn add(to: &AtomicU64, value: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_counts_for_each_bound_that_it_does_not_pass() {
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
