//! Counters of each network and of the whole process, since its start. They are updated where the
//! events happen, and read on request (`metrics.rs`).

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Answers to STUN requests, which belong to no network.
pub(crate) static STUN: Counter = Counter::new();

/// Bucket bounds for the durations of commits, in microseconds: from a disk with a write cache to
/// one that is stuck.
pub(crate) const BOUNDS: [u64; 10] =
    [1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// A value that only grows.
#[derive(Debug)]
pub struct Counter(AtomicU64);

/// A value that grows and shrinks.
#[derive(Debug)]
pub struct Gauge(AtomicI64);

/// Decrements a gauge when dropped.
pub struct GaugeGuard(&'static Gauge);

/// Durations, counted by bucket.
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// Counters of a network.
pub(crate) struct Counters {
    /// Commands that ran on the network's state.
    pub commands: Counter,
    /// Durations of committed transactions.
    pub commits: Histogram,
    /// Transactions that conflicted with another process's.
    pub conflicts: Counter,
    /// Transactions that the store refused.
    pub failures: Counter,
    /// Version of the network in the store.
    pub version: Gauge,
    /// Open streams of maps.
    pub streams: Gauge,
    /// Counters of the relay.
    pub relay: RelayCounters,
    /// Refused logins.
    pub refused: RefusedLogins,
}

/// Counters of a relay.
#[derive(Debug)]
pub struct RelayCounters {
    /// Connected clients.
    pub clients: Gauge,
    /// Datagrams accepted for connected clients.
    pub datagrams: Counter,
    /// Bytes of these datagrams.
    pub bytes: Counter,
    /// Datagrams for clients that are not connected.
    pub not_here: Counter,
    /// Datagrams dropped from a full queue.
    pub queue_full: Counter,
}

/// Refused logins by place.
pub(crate) struct RefusedLogins {
    /// Machines that are not nodes.
    pub machine: Counter,
    /// Relay clients that are not known to the network.
    pub relay: Counter,
    /// Keys of the API and of the page.
    pub api: Counter,
    /// Users of a login provider.
    pub oidc: Counter,
}

impl Counters {
    /// Creates the counters of a network. They live as long as the process, because connections
    /// update them until they end.
    pub(crate) fn begin() -> &'static Self {
        Box::leak(Box::new(Self::new()))
    }

    const fn new() -> Self {
        Self {
            commands: Counter::new(),
            commits: Histogram::new(),
            conflicts: Counter::new(),
            failures: Counter::new(),
            version: Gauge::new(),
            streams: Gauge::new(),
            relay: RelayCounters {
                clients: Gauge::new(),
                datagrams: Counter::new(),
                bytes: Counter::new(),
                not_here: Counter::new(),
                queue_full: Counter::new(),
            },
            refused: RefusedLogins {
                machine: Counter::new(),
                relay: Counter::new(),
                api: Counter::new(),
                oidc: Counter::new(),
            },
        }
    }
}

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds to the counter.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The value.
    pub fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Gauge {
    const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// Increments the gauge until the guard is dropped.
    pub fn increment(&'static self) -> GaugeGuard {
        self.0.fetch_add(1, Relaxed);
        GaugeGuard(self)
    }

    /// The value.
    pub fn read(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

impl Histogram {
    const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BOUNDS.len()],
            count: AtomicU64::new(0),
            micros: AtomicU64::new(0),
        }
    }

    /// Counts a duration.
    pub(crate) fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BOUNDS.iter().position(|bound| micros <= *bound) {
            self.buckets[bucket].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    /// For each bound, the number of durations up to it, in microseconds.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.load(Relaxed);
            Some(*sum)
        });
        BOUNDS.into_iter().zip(counts)
    }

    /// The number of durations, and their sum in microseconds.
    pub(crate) fn total(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.micros.load(Relaxed))
    }
}

/// Counters for the tests of the relay.
#[cfg(test)]
pub(crate) fn for_tests() -> &'static RelayCounters {
    static COUNTERS: Counters = Counters::new();
    &COUNTERS.relay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_by_bucket_and_the_longest_only_in_the_total() {
        let times = Histogram::new();
        for micros in [1, 1_000, 1_001, 5_000_001] {
            times.observe(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = times.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(times.total(), (4, 5_002_003));
    }

    #[test]
    fn a_gauge_falls_when_its_guard_is_dropped() {
        static GAUGE: Gauge = Gauge::new();
        let (one, other) = (GAUGE.increment(), GAUGE.increment());
        drop(one);
        assert_eq!(GAUGE.read(), 1);
        drop(other);
        assert_eq!(GAUGE.read(), 0);
    }
}
