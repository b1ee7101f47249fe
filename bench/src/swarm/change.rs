//! How soon the nodes that see a node are told that it is reached elsewhere or has another key.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};

use super::{Shared, percentiles};

/// The most changes of one question, as many as bits that each node has of those that it was told.
const MOST: usize = 512;
/// How long is waited for the last.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a node is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// The change, which others are told.
    pub mark: u16,
    /// Whether it takes another key, too.
    pub is_renewal: bool,
}

/// The changes that are asked about.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// When each began, by its mark; marks are used once.
    begun: Mutex<Vec<Option<Instant>>>,
    /// How long each took until somebody was told.
    told: Mutex<Vec<f32>>,
    expected: AtomicUsize,
}

/// Which changes a node was told.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<u64>);

/// How soon others are told, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// How many were told in time, of each change the nodes that see the node.
    pub count: usize,
    /// How many had to be.
    pub expected: usize,
    /// Half of them.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// All.
    pub last: f64,
}

impl Latency {
    fn of(mut times: Vec<f32>, expected: usize) -> Latency {
        let [p50, p99, last] = percentiles(&mut times);
        Latency { count: times.len(), expected, p50, p99, last }
    }

    /// The line that says so.
    pub fn parse(line: &str) -> Option<Latency> {
        let mut words = line.strip_prefix("latency ")?.split_whitespace();
        let mut number = || words.next()?.parse().ok();
        let (count, expected) = (number()?, number()?);
        let mut next = || words.next()?.parse().ok();
        Some(Latency { count, expected, p50: next()?, p99: next()?, last: next()? })
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { count, expected, p50, p99, last } = self;
        write!(f, "latency {count} {expected} {p50:.3} {p99:.3} {last:.3}")
    }
}

impl Changes {
    /// A change begins now.
    pub fn begin(&self, mark: u16) {
        self.begun()[usize::from(mark)] = Some(Instant::now());
    }

    /// A node was told these: notes what is new to it.
    pub fn note(&self, marks: &[u16], told: &mut Told) -> bool {
        let mut any = false;
        for mark in marks {
            let begun = self.begun().get(usize::from(*mark)).copied().flatten();
            if let Some(begun) = begun
                && told.insert(*mark)
            {
                let took = begun.elapsed().as_secs_f32() * 1e3;
                self.told.lock().unwrap_or_else(PoisonError::into_inner).push(took);
                any = true;
            }
        }
        any
    }

    fn begun(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Told {
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
    /// Has so many nodes change, one after the other, and says how soon others were told.
    pub(super) async fn change(
        self: &Arc<Self>,
        orders: &[mpsc::UnboundedSender<Order>],
        is_renewal: bool,
        count: usize,
        pause: Duration,
    ) {
        let count = count.min(MOST).min(orders.len());
        let first = self.changes.begun().len();
        self.changes.begun().resize(first + count, None);
        self.changes.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.changes.expected.store(0, Relaxed);
        let mut each = interval(pause.max(Duration::from_millis(1)));
        for number in 0..count {
            each.tick().await;
            // From everywhere, and others each time.
            let node = (number * orders.len() / count + first) % orders.len();
            let sees = self.swarm.groups[self.places[node]].sees;
            self.changes.expected.fetch_add(sees, Relaxed);
            let mark = u16::try_from(first + number).expect("there are fewer");
            // A node lives as long as the process.
            let _ = orders[node].send(Order { mark, is_renewal });
        }
        let expected = self.changes.expected.load(Relaxed);
        let all_are_told = async {
            while self.changes.count() < expected {
                self.done.notified().await;
            }
        };
        // What is reached by then is said.
        let _ = timeout(PATIENCE, all_are_told).await;
        let told = self.changes.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        println!("{}", Latency::of(told, expected));
    }
}

#[cfg(test)]
mod tests {
    use super::{Changes, Latency, Told};

    #[test]
    fn what_is_said_is_read() {
        let latency = Latency::of((1..=200).rev().map(|time| time as f32).collect(), 300);
        assert_eq!(
            (latency.count, latency.p50, latency.p99, latency.last),
            (200, 100.0, 198.0, 200.0)
        );
        assert_eq!(Latency::parse(&latency.to_string()), Some(latency));
        assert_eq!(Latency::parse("latency 1"), None);
    }

    #[test]
    fn each_node_is_counted_once_a_change_and_no_change_that_was_not_asked_for() {
        let changes = Changes::default();
        changes.begun().resize(3, None);
        changes.begin(2);
        let (mut one, mut other) = (Told::default(), Told::default());
        assert!(changes.note(&[2, 7], &mut one) && !changes.note(&[2, 1], &mut one));
        assert!(changes.note(&[2], &mut other));
        assert_eq!(changes.count(), 2);
    }
}
