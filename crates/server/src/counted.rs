//! What is counted, of each network and for the whole process, from its start on: added to wherever
//! something happens, and read on request (`metrics.rs`).

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Answers to STUN, which are of no network.
pub static STUN: Counter = Counter::new();

/// Bounds of the times that commits are sorted by, in microseconds: from a disk that has a cache of
/// its own to one that is stuck.
pub const BOUNDS: [u64; 10] =
    [1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// A number that grows.
#[derive(Debug)]
pub struct Counter(AtomicU64);

/// A number that grows and shrinks.
#[derive(Debug)]
pub struct Gauge(AtomicI64);

/// One more, for as long as this is kept.
pub struct Held(&'static Gauge);

/// How long something took, each time.
pub struct Times {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// What is counted of a network.
pub struct Counted {
    /// Commands that were run on the network's state.
    pub commands: Counter,
    /// Transactions that are on the disk, by how long they took.
    pub commits: Times,
    /// Transactions that came behind another process's.
    pub conflicts: Counter,
    /// Transactions that the store refused.
    pub failures: Counter,
    /// The network's version in the store.
    pub version: Gauge,
    /// Streams of maps.
    pub streams: Gauge,
    /// What the relay did.
    pub relay: Relay,
    /// Logins that were refused.
    pub refused: Refused,
}

/// What the relay did.
#[derive(Debug)]
pub struct Relay {
    /// Who is connected.
    pub clients: Gauge,
    /// Datagrams that it took for clients that are connected.
    pub datagrams: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Datagrams to clients that are not connected.
    pub not_here: Counter,
    /// Datagrams that made room for newer ones.
    pub queue_full: Counter,
}

/// Logins that were refused, by where.
pub struct Refused {
    /// Machines that are no nodes.
    pub machine: Counter,
    /// Clients of the relay that the network does not know.
    pub relay: Counter,
    /// Keys of the API, and of the page.
    pub api: Counter,
    /// Users of a provider.
    pub oidc: Counter,
}

impl Counted {
    /// Of a network that begins. It lasts as long as the process: what is connected counts itself
    /// until it is gone.
    pub fn begin() -> &'static Self {
        Box::leak(Box::new(Self::new()))
    }

    const fn new() -> Self {
        Self {
            commands: Counter::new(),
            commits: Times::new(),
            conflicts: Counter::new(),
            failures: Counter::new(),
            version: Gauge::new(),
            streams: Gauge::new(),
            relay: Relay {
                clients: Gauge::new(),
                datagrams: Counter::new(),
                bytes: Counter::new(),
                not_here: Counter::new(),
                queue_full: Counter::new(),
            },
            refused: Refused {
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

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// How many there were.
    pub fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Gauge {
    const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// It is this now.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// One more, until what is returned is dropped.
    pub fn hold(&'static self) -> Held {
        self.0.fetch_add(1, Relaxed);
        Held(self)
    }

    /// What it is.
    pub fn read(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

impl Times {
    const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BOUNDS.len()],
            count: AtomicU64::new(0),
            micros: AtomicU64::new(0),
        }
    }

    /// It took so long.
    pub fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(place) = BOUNDS.iter().position(|bound| micros <= *bound) {
            self.buckets[place].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    /// How often it took at most so many microseconds, for each bound.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.load(Relaxed);
            Some(*sum)
        });
        BOUNDS.into_iter().zip(counts)
    }

    /// How often, and how many microseconds in all.
    pub fn total(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.micros.load(Relaxed))
    }
}

/// What tests of a relay count by.
#[cfg(test)]
pub fn of_tests() -> &'static Relay {
    static COUNTED: Counted = Counted::new();
    &COUNTED.relay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_sorted_by_their_bounds_and_the_longest_are_in_the_count_alone() {
        let times = Times::new();
        for micros in [1, 1_000, 1_001, 5_000_001] {
            times.note(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = times.up_to().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(times.total(), (4, 5_002_003));
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_dropped() {
        static GAUGE: Gauge = Gauge::new();
        let (one, other) = (GAUGE.hold(), GAUGE.hold());
        drop(one);
        assert_eq!(GAUGE.read(), 1);
        drop(other);
        assert_eq!(GAUGE.read(), 0);
    }
}
