//! Delay until the nodes that see a node have its new endpoint or key.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};

use super::{Shared, percentiles};

/// Limit of changes in all commands; each node has a bit for each change that it received.
const MAX_CHANGES: usize = 512;
/// Time to wait for the last update.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// Number of the change, which others recognise.
    pub mark: u16,
    /// Whether the node also changes its key.
    pub is_renewal: bool,
}

/// The requested changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Start of each change, by its mark; marks are used once.
    begun: Mutex<Vec<Option<Instant>>>,
    /// Delay of each update in milliseconds.
    delays: Mutex<Vec<f32>>,
    expected: AtomicUsize,
}

/// The changes that a node has received.
#[derive(Debug, Default)]
pub(super) struct SeenChanges(Vec<u64>);

/// Delay of updates, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Updates received in time; each node that sees a changed node receives one.
    pub count: usize,
    /// Updates expected.
    pub expected: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub last: f64,
}

impl Latency {
    fn of(mut times: Vec<f32>, expected: usize) -> Self {
        let [p50, p99, last] = percentiles(&mut times);
        Self { count: times.len(), expected, p50, p99, last }
    }

    /// Parses the line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("latency ")?.split_whitespace();
        let mut number = || words.next()?.parse().ok();
        let (count, expected) = (number()?, number()?);
        let mut next = || words.next()?.parse().ok();
        Some(Self { count, expected, p50: next()?, p99: next()?, last: next()? })
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, expected, p50, p99, last } = self;
        write!(f, "latency {count} {expected} {p50:.3} {p99:.3} {last:.3}")
    }
}

impl Changes {
    /// Records the start of a change.
    pub(super) fn begin(&self, mark: u16) {
        self.begun()[usize::from(mark)] = Some(Instant::now());
    }

    /// Records the changes that are new to a node. Returns whether any was.
    pub(super) fn note(&self, marks: &[u16], seen: &mut SeenChanges) -> bool {
        let mut any = false;
        for mark in marks {
            let begun = self.begun().get(usize::from(*mark)).copied().flatten();
            if let Some(begun) = begun
                && seen.insert(*mark)
            {
                let took = begun.elapsed().as_secs_f32() * 1e3;
                self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(took);
                any = true;
            }
        }
        any
    }

    fn begun(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl SeenChanges {
    fn insert(&mut self, mark: u16) -> bool {
        let (word, bit) = (usize::from(mark / 64), 1 << (mark % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

impl Shared {
    /// Changes `count` nodes one after the other, and prints the delay at the others.
    pub(super) async fn change(
        self: &Arc<Self>,
        orders: &[mpsc::UnboundedSender<Order>],
        is_renewal: bool,
        count: usize,
        pause: Duration,
    ) {
        let count = count.min(MAX_CHANGES).min(orders.len());
        let first = self.changes.begun().len();
        self.changes.begun().resize(first + count, None);
        self.changes.delays.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.changes.expected.store(0, Relaxed);
        let mut each = interval(pause.max(Duration::from_millis(1)));
        for number in 0..count {
            each.tick().await;
            // Distributed over all nodes, and different ones each time.
            let node = (number * orders.len() / count + first) % orders.len();
            let sees = self.swarm.groups[self.group_of_nodes[node]].sees;
            self.changes.expected.fetch_add(sees, Relaxed);
            let mark = u16::try_from(first + number).expect("the number of changes is limited");
            // A node runs as long as the process.
            let _ = orders[node].send(Order { mark, is_renewal });
        }
        let expected = self.changes.expected.load(Relaxed);
        let all_have_received = async {
            while self.changes.count() < expected {
                self.done.notified().await;
            }
        };
        // After the limit the current state is printed.
        let _ = timeout(PATIENCE, all_have_received).await;
        let delays = self.changes.delays.lock().unwrap_or_else(PoisonError::into_inner).clone();
        println!("{}", Latency::of(delays, expected));
    }
}

#[cfg(test)]
mod tests {
    use super::{Changes, Latency, SeenChanges};

    #[test]
    fn latency_is_printed_and_parsed() {
        let latency = Latency::of((1..=200).rev().map(|time| time as f32).collect(), 300);
        assert_eq!(
            (latency.count, latency.p50, latency.p99, latency.last),
            (200, 100.0, 198.0, 200.0)
        );
        assert_eq!(Latency::parse(&latency.to_string()), Some(latency));
        assert_eq!(Latency::parse("latency 1"), None);
    }

    #[test]
    fn a_change_is_counted_once_per_node_and_unknown_changes_are_ignored() {
        let changes = Changes::default();
        changes.begun().resize(3, None);
        changes.begin(2);
        let (mut one, mut other) = (SeenChanges::default(), SeenChanges::default());
        assert!(changes.note(&[2, 7], &mut one) && !changes.note(&[2, 1], &mut one));
        assert!(changes.note(&[2], &mut other));
        assert_eq!(changes.count(), 2);
    }
}
