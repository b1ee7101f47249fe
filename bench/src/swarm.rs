//! The generator of a network's load: thousands of nodes, each a client of the real protocol over
//! its own connection (TLS, Noise, HTTP/2), all in this process. They carry no packets.
//!
//! ```text
//!   swarm ── join_permits ──► node: register, map, update               one task each
//!     ▲                         │
//!     └── whole, first, bytes, failures ───┘ peer_list: the peers in its maps
//! ```
//!
//! It prints a line once all nodes have all visible peers, or after the limit. Then the network
//! remains until stdin ends. Commands on stdin:
//!
//! | line | answer |
//! |---|---|
//! | `rules` | when all nodes received new rules |
//! | `again` | once all nodes have received another full map, as after a restart |
//! | `change COUNT MS` | the delay at the other nodes when COUNT nodes, one every MS ms, change their endpoint |
//! | `renew COUNT MS` | the same for new keys |

mod change;
mod node;
mod peer_list;

pub use self::change::Latency;
pub use self::node::{node_key, public_key};

use std::error::Error;
use std::fmt;
use std::io::stdin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use member::agent::control::dial::{Dialer, tls};
use mesh::{dialing::ControlUrl, http_proxy::Proxies};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

/// Time in which all nodes receive new rules.
const RULES: Duration = Duration::from_secs(60);

/// The nodes and their coordinator.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The coordinator.
    pub url: ControlUrl,
    /// Certificates of the trusted authority, in PEM.
    pub authority: Vec<u8>,
    /// The kinds of nodes.
    pub groups: Vec<Group>,
    /// Limit of nodes that wait for their first map at a time.
    pub at_once: usize,
    /// Time for all to join.
    pub limit: Duration,
}

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// A reusable key.
    pub auth_key: String,
    /// How many nodes.
    pub count: usize,
    /// Number of other nodes that each of them sees.
    pub sees: usize,
}

/// Progress of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Joined {
    /// Nodes that have all their peers.
    pub whole: usize,
    /// Nodes that have their first map.
    pub first: usize,
    /// Seconds until then, or the limit.
    pub seconds: f64,
    /// Bytes of their map streams, compressed.
    pub bytes: u64,
    /// The same uncompressed.
    pub unpacked: u64,
    /// Number of failed connections.
    pub failures: u64,
}

/// When nodes received new rules, in seconds since the Unix epoch: median, 99th percentile and
/// last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RulesReport {
    /// Nodes that received them in time.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub last: f64,
}

/// State shared by all nodes.
struct Shared {
    swarm: Swarm,
    /// The group of each node.
    group_of_nodes: Vec<usize>,
    memory: peer_list::PieceCache,
    changes: change::Changes,
    /// A node's full map is counted once per epoch.
    epoch: AtomicU64,
    dialer: Dialer,
    join_permits: Semaphore,
    whole: AtomicUsize,
    first: AtomicUsize,
    bytes: AtomicU64,
    unpacked: AtomicU64,
    failures: AtomicU64,
    /// The last failure, for messages.
    last_failure: Mutex<String>,
    /// Number of the current `rules` command; rules are recorded once per node and command.
    question: AtomicU64,
    rule_times: Mutex<Vec<f64>>,
    done: Notify,
}

impl Joined {
    /// Parses the line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("joined ")?.split_whitespace();
        let mut next = || words.next();
        Some(Self {
            whole: next()?.parse().ok()?,
            first: next()?.parse().ok()?,
            seconds: next()?.parse().ok()?,
            bytes: next()?.parse().ok()?,
            unpacked: next()?.parse().ok()?,
            failures: next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole, first, seconds, bytes, unpacked, failures } = self;
        write!(f, "joined {whole} {first} {seconds} {bytes} {unpacked} {failures}")
    }
}

impl RulesReport {
    /// From the time of each node.
    fn of(mut times: Vec<f64>) -> Self {
        let [p50, p99, last] = percentiles(&mut times);
        Self { count: times.len(), p50, p99, last }
    }

    /// Parses the line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("told ")?.split_whitespace();
        let count = words.next()?.parse().ok()?;
        let mut next = || words.next()?.parse().ok();
        Some(Self { count, p50: next()?, p99: next()?, last: next()? })
    }
}

/// Median, 99th percentile and maximum.
fn percentiles<T: Copy + Into<f64>>(values: &mut [T]) -> [f64; 3] {
    values.sort_by(|one, other| (*one).into().total_cmp(&(*other).into()));
    [0.5, 0.99, 1.0].map(|part| {
        let place = (values.len() as f64 * part).ceil() as usize;
        values.get(place.saturating_sub(1)).map_or(f64::NAN, |value| (*value).into())
    })
}

impl fmt::Display for RulesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, p50, p99, last } = self;
        write!(f, "told {count} {p50:.6} {p99:.6} {last:.6}")
    }
}

impl Group {
    /// One group of all nodes, which see each other.
    pub fn all(auth_key: &str, count: usize) -> Self {
        Self { auth_key: auth_key.to_owned(), count, sees: count.saturating_sub(1) }
    }

    /// Parses the argument.
    pub fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split('=');
        let auth_key = parts.next()?.to_owned();
        let mut next = || parts.next()?.parse().ok();
        Some(Self { auth_key, count: next()?, sees: next()? })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}={}", self.auth_key, self.count, self.sees)
    }
}

impl Swarm {
    /// How many nodes.
    fn count(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// The group of each node, in random order, as machines join.
    fn group_of_nodes(&self) -> Vec<usize> {
        let groups = self.groups.iter().enumerate();
        let mut group_of_nodes: Vec<usize> =
            groups.flat_map(|(place, group)| std::iter::repeat_n(place, group.count)).collect();
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        for last in (1..group_of_nodes.len()).rev() {
            group_of_nodes.swap(last, rng.next_u64() as usize % (last + 1));
        }
        group_of_nodes
    }

    /// Joins, and remains until stdin ends.
    ///
    /// # Errors
    /// The runtime does not start, or the authority is invalid.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        // Each node has a connection, which is a file.
        sys::process::raise_file_limit()?;
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let dialer = dialer(&self.authority)?;
        runtime.block_on(Arc::new(Shared::new(self, dialer)).run());
        // Nodes do not log out: the coordinator is about to end as well.
        std::process::exit(0)
    }
}

/// A dialer that trusts this authority alone.
///
/// # Errors
/// The authority is invalid.
pub fn dialer(authority: &[u8]) -> Result<Dialer, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    Ok(Dialer::new(Proxies::default(), tls(roots), None))
}

impl Shared {
    fn new(swarm: Swarm, dialer: Dialer) -> Self {
        Self {
            dialer,
            join_permits: Semaphore::new(swarm.at_once),
            group_of_nodes: swarm.group_of_nodes(),
            memory: peer_list::PieceCache::default(),
            changes: change::Changes::default(),
            epoch: AtomicU64::new(0),
            swarm,
            whole: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            unpacked: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            question: AtomicU64::new(0),
            rule_times: Mutex::default(),
            done: Notify::new(),
        }
    }

    async fn run(self: Arc<Self>) {
        let mut lines = lines();
        let (mut orders, begun) = (Vec::new(), Instant::now());
        for (number, group) in self.group_of_nodes.iter().enumerate() {
            let (order, to) = mpsc::unbounded_channel();
            orders.push(order);
            let group = self.swarm.groups[*group].clone();
            tokio::spawn(node::run(Arc::clone(&self), (number, group), to));
        }
        self.wait_for_whole(begun).await;
        while let Some(line) = lines.recv().await {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["rules"] => self.wait_for_rules().await,
                ["again"] => {
                    self.first.store(0, Relaxed);
                    self.failures.store(0, Relaxed);
                    self.epoch.fetch_add(1, Relaxed);
                    println!("listening");
                    self.wait_for_whole(Instant::now()).await;
                }
                [what @ ("change" | "renew"), count, pause] => {
                    let is_renewal = what == "renew";
                    let (Ok(count), Ok(pause)) = (count.parse(), pause.parse()) else { continue };
                    self.change(&orders, is_renewal, count, Duration::from_millis(pause)).await;
                }
                _ => {}
            }
        }
    }

    /// Prints a line once all nodes have had a full map in this epoch and have all visible peers.
    async fn wait_for_whole(&self, begun: Instant) {
        let count = self.swarm.count();
        let all_are_whole = async {
            while self.whole.load(Relaxed) < count || self.first.load(Relaxed) < count {
                self.done.notified().await;
            }
        };
        // After the limit the current progress is printed.
        let _ = timeout(self.swarm.limit, all_are_whole).await;
        let joined = self.joined(begun.elapsed());
        println!("{joined}");
        if joined.failures > 0 {
            let trouble = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("swarm: {} failures, the last: {trouble}", joined.failures);
        }
    }

    fn joined(&self, elapsed: Duration) -> Joined {
        Joined {
            whole: self.whole.load(Relaxed),
            first: self.first.load(Relaxed),
            seconds: elapsed.as_secs_f64(),
            bytes: self.bytes.load(Relaxed),
            unpacked: self.unpacked.load(Relaxed),
            failures: self.failures.load(Relaxed),
        }
    }

    async fn wait_for_rules(&self) {
        self.rule_times().clear();
        self.question.fetch_add(1, Relaxed);
        println!("listening");
        let all_have_received = async {
            while self.rule_times().len() < self.swarm.count() {
                self.done.notified().await;
            }
        };
        // As above.
        let _ = timeout(RULES, all_have_received).await;
        println!("{}", RulesReport::of(self.rule_times().clone()));
    }

    fn rule_times(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.rule_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_failure(&self, trouble: &dyn fmt::Display) {
        self.failures.fetch_add(1, Relaxed);
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = trouble.to_string();
    }

    /// A node received new rules.
    fn note_rules(&self) {
        let now = sys::clock::wall();
        self.rule_times().push(now.as_secs_f64());
        self.done.notify_one();
    }

    /// A node has a full map.
    fn note_map(&self) {
        self.first.fetch_add(1, Relaxed);
        self.done.notify_one();
    }

    /// A node has all its peers, or no longer.
    fn note_whole(&self, is_whole: bool) {
        if is_whole {
            self.whole.fetch_add(1, Relaxed);
            self.done.notify_one();
        } else {
            self.whole.fetch_sub(1, Relaxed);
        }
    }
}

/// The lines of stdin.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (to, lines) = mpsc::unbounded_channel();
    // Without the thread the channel is closed, and the generator ends at once.
    let _ = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::{Group, Joined, RulesReport};

    #[test]
    fn reports_are_printed_and_parsed() {
        let joined =
            Joined { whole: 1, first: 2, seconds: 0.25, bytes: 3, unpacked: 4, failures: 5 };
        assert_eq!(Joined::parse(&joined.to_string()), Some(joined));
        let report = RulesReport { count: 7, p50: 1.5, p99: 2.5, last: 3.25 };
        assert_eq!(RulesReport::parse(&report.to_string()), Some(report));
        let group = Group { auth_key: "hskey-auth-x-y".to_owned(), count: 8, sees: 9 };
        assert_eq!(Group::parse(&group.to_string()), Some(group));
        assert_eq!((Joined::parse("joined 1"), RulesReport::parse("joined 1 2 3 4")), (None, None));
    }

    #[test]
    fn the_99th_percentile_of_two_hundred_is_the_198th() {
        let report = RulesReport::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((report.count, report.p50, report.p99, report.last), (200, 100.0, 198.0, 200.0));
        assert!(RulesReport::of(Vec::new()).p99.is_nan());
    }
}
