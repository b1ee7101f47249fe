//! The generator of a network's load: nodes by the thousand, each a client of the real protocol over
//! a connection of its own (TLS, Noise, HTTP/2), all in this process. They carry no packets.
//!
//! ```text
//!   swarm ── entrance: so many at a time ──► node: register, map, update     one task each
//!     ▲                                        │
//!     └── whole, first, bytes, troubles ───────┘ known: which peers it was told of
//! ```
//!
//! It prints a line once all nodes know all peers that they may, or the time is over; then the
//! network stands until stdin ends. Lines on stdin ask for more:
//!
//! | line | answer |
//! |---|---|
//! | `rules` | when all nodes were told other rules |
//! | `again` | once all nodes have had another whole map, as they do behind a restart |
//! | `change COUNT MS` | how soon others are told when so many nodes, one each so many ms, are reached elsewhere |
//! | `renew COUNT MS` | the same when they take other keys |

mod change;
mod known;
mod node;

pub use self::change::Latency;
pub use self::node::{node_key, public_key};

use std::error::Error;
use std::fmt;
use std::io::stdin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use member::agent::control::dial::{Dialer, tls};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tailnet::control::{dial::ControlUrl, proxy::Proxies};
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

/// Within this all nodes are told of other rules.
const RULES: Duration = Duration::from_secs(60);

/// What joins, and where.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The coordinator.
    pub url: ControlUrl,
    /// Who is trusted for it, in PEM.
    pub authority: Vec<u8>,
    /// Of what kinds they are.
    pub groups: Vec<Group>,
    /// How many of them at most wait for their first map at a time.
    pub at_once: usize,
    /// How long they have.
    pub limit: Duration,
}

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// A key that any number of nodes may join with.
    pub auth_key: String,
    /// How many nodes.
    pub count: usize,
    /// How many others each of them is told of.
    pub sees: usize,
}

/// How far the nodes came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Joined {
    /// How many know all others.
    pub whole: usize,
    /// How many have their first map.
    pub first: usize,
    /// When that was so, or the time was over.
    pub seconds: f64,
    /// What their streams of maps brought, in bytes of zstd.
    pub bytes: u64,
    /// The same unpacked.
    pub unpacked: u64,
    /// How often a connection failed.
    pub troubles: u64,
}

/// When nodes were told of other rules, in seconds since the Unix epoch: half of them, 99 of 100, and
/// all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// How many were told in time.
    pub count: usize,
    /// Half of them.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// All.
    pub last: f64,
}

/// What all nodes share.
struct Shared {
    swarm: Swarm,
    /// The group of each node.
    places: Vec<usize>,
    memory: known::Memory,
    changes: change::Changes,
    /// Whole maps are counted once while this number stands.
    epoch: AtomicU64,
    dialer: Dialer,
    entrance: Semaphore,
    whole: AtomicUsize,
    first: AtomicUsize,
    bytes: AtomicU64,
    unpacked: AtomicU64,
    troubles: AtomicU64,
    /// The last trouble, for people.
    trouble: Mutex<String>,
    /// Rules that are told while this number stands are of that question.
    question: AtomicU64,
    told: Mutex<Vec<f64>>,
    done: Notify,
}

impl Joined {
    /// The line that says so.
    pub fn parse(line: &str) -> Option<Joined> {
        let mut words = line.strip_prefix("joined ")?.split_whitespace();
        let mut next = || words.next();
        Some(Joined {
            whole: next()?.parse().ok()?,
            first: next()?.parse().ok()?,
            seconds: next()?.parse().ok()?,
            bytes: next()?.parse().ok()?,
            unpacked: next()?.parse().ok()?,
            troubles: next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Joined { whole, first, seconds, bytes, unpacked, troubles } = self;
        write!(f, "joined {whole} {first} {seconds} {bytes} {unpacked} {troubles}")
    }
}

impl Told {
    /// Of when each was told.
    fn of(mut times: Vec<f64>) -> Told {
        let [p50, p99, last] = percentiles(&mut times);
        Told { count: times.len(), p50, p99, last }
    }

    /// The line that says so.
    pub fn parse(line: &str) -> Option<Told> {
        let mut words = line.strip_prefix("told ")?.split_whitespace();
        let count = words.next()?.parse().ok()?;
        let mut next = || words.next()?.parse().ok();
        Some(Told { count, p50: next()?, p99: next()?, last: next()? })
    }
}

/// What half of these are at most, what 99 of 100 are, and what all are.
fn percentiles<T: Copy + Into<f64>>(values: &mut [T]) -> [f64; 3] {
    values.sort_by(|one, other| (*one).into().total_cmp(&(*other).into()));
    [0.5, 0.99, 1.0].map(|part| {
        let place = (values.len() as f64 * part).ceil() as usize;
        values.get(place.saturating_sub(1)).map_or(f64::NAN, |value| (*value).into())
    })
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { count, p50, p99, last } = self;
        write!(f, "told {count} {p50:.6} {p99:.6} {last:.6}")
    }
}

impl Group {
    /// One group of all nodes, which see each other.
    pub fn all(auth_key: &str, count: usize) -> Group {
        Group { auth_key: auth_key.to_owned(), count, sees: count.saturating_sub(1) }
    }

    /// The word that says so.
    pub fn parse(word: &str) -> Option<Group> {
        let mut parts = word.split('=');
        let auth_key = parts.next()?.to_owned();
        let mut next = || parts.next()?.parse().ok();
        Some(Group { auth_key, count: next()?, sees: next()? })
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

    /// The group of each node: they come in no order, as machines do.
    fn places(&self) -> Vec<usize> {
        let groups = self.groups.iter().enumerate();
        let mut places: Vec<usize> =
            groups.flat_map(|(place, group)| std::iter::repeat_n(place, group.count)).collect();
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        for last in (1..places.len()).rev() {
            places.swap(last, rng.next_u64() as usize % (last + 1));
        }
        places
    }

    /// Joins, and stays until stdin ends.
    ///
    /// # Errors
    /// There is no runtime, or the authority is none.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        // Each node is a connection, and so a file.
        sys::process::raise_file_limit()?;
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let dialer = dialer(&self.authority)?;
        runtime.block_on(Arc::new(Shared::new(self, dialer)).run());
        // Nobody is told good-bye: the coordinator is about to end as well.
        std::process::exit(0)
    }
}

/// What trusts this authority alone.
///
/// # Errors
/// It is none.
pub fn dialer(authority: &[u8]) -> Result<Dialer, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    Ok(Dialer::new(Proxies::default(), tls(roots), None))
}

impl Shared {
    fn new(swarm: Swarm, dialer: Dialer) -> Shared {
        Shared {
            dialer,
            entrance: Semaphore::new(swarm.at_once),
            places: swarm.places(),
            memory: known::Memory::default(),
            changes: change::Changes::default(),
            epoch: AtomicU64::new(0),
            swarm,
            whole: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            unpacked: AtomicU64::new(0),
            troubles: AtomicU64::new(0),
            trouble: Mutex::default(),
            question: AtomicU64::new(0),
            told: Mutex::default(),
            done: Notify::new(),
        }
    }

    async fn run(self: Arc<Self>) {
        let mut lines = lines();
        let (mut orders, begun) = (Vec::new(), Instant::now());
        for (number, group) in self.places.iter().enumerate() {
            let (order, to) = mpsc::unbounded_channel();
            orders.push(order);
            let group = self.swarm.groups[*group].clone();
            tokio::spawn(node::live(Arc::clone(&self), (number, group), to));
        }
        self.wait_for_whole(begun).await;
        while let Some(line) = lines.recv().await {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["rules"] => self.wait_for_rules().await,
                ["again"] => {
                    self.first.store(0, Relaxed);
                    self.troubles.store(0, Relaxed);
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

    /// Says so once all nodes have had a whole map in this epoch, and know all that they may.
    async fn wait_for_whole(&self, begun: Instant) {
        let count = self.swarm.count();
        let all_are_whole = async {
            while self.whole.load(Relaxed) < count || self.first.load(Relaxed) < count {
                self.done.notified().await;
            }
        };
        // What is reached by then is said.
        let _ = timeout(self.swarm.limit, all_are_whole).await;
        let joined = self.joined(begun.elapsed());
        println!("{joined}");
        if joined.troubles > 0 {
            let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("swarm: {} troubles, the last: {trouble}", joined.troubles);
        }
    }

    fn joined(&self, elapsed: Duration) -> Joined {
        Joined {
            whole: self.whole.load(Relaxed),
            first: self.first.load(Relaxed),
            seconds: elapsed.as_secs_f64(),
            bytes: self.bytes.load(Relaxed),
            unpacked: self.unpacked.load(Relaxed),
            troubles: self.troubles.load(Relaxed),
        }
    }

    async fn wait_for_rules(&self) {
        self.told().clear();
        self.question.fetch_add(1, Relaxed);
        println!("listening");
        let all_are_told = async {
            while self.told().len() < self.swarm.count() {
                self.done.notified().await;
            }
        };
        // As above.
        let _ = timeout(RULES, all_are_told).await;
        println!("{}", Told::of(self.told().clone()));
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_trouble(&self, trouble: &dyn fmt::Display) {
        self.troubles.fetch_add(1, Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble.to_string();
    }

    /// A node was told of other rules.
    fn note_rules(&self) {
        let now = sys::clock::wall();
        self.told().push(now.as_secs_f64());
        self.done.notify_one();
    }

    /// A node has a whole map.
    fn note_map(&self) {
        self.first.fetch_add(1, Relaxed);
        self.done.notify_one();
    }

    /// A node knows all others, or does no more.
    fn note_whole(&self, is_whole: bool) {
        if is_whole {
            self.whole.fetch_add(1, Relaxed);
            self.done.notify_one();
        } else {
            self.whole.fetch_sub(1, Relaxed);
        }
    }
}

/// The lines of stdin, until it ends.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (to, lines) = mpsc::unbounded_channel();
    // Without the thread the channel is closed: the generator ends at once.
    let _ = std::thread::Builder::new().name("leash".to_owned()).spawn(move || {
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
    use super::{Group, Joined, Told};

    #[test]
    fn what_is_said_is_read() {
        let joined =
            Joined { whole: 1, first: 2, seconds: 0.25, bytes: 3, unpacked: 4, troubles: 5 };
        assert_eq!(Joined::parse(&joined.to_string()), Some(joined));
        let told = Told { count: 7, p50: 1.5, p99: 2.5, last: 3.25 };
        assert_eq!(Told::parse(&told.to_string()), Some(told));
        let group = Group { auth_key: "hskey-auth-x-y".to_owned(), count: 8, sees: 9 };
        assert_eq!(Group::parse(&group.to_string()), Some(group));
        assert_eq!((Joined::parse("joined 1"), Told::parse("joined 1 2 3 4")), (None, None));
    }

    #[test]
    fn of_two_hundred_the_99th_percentile_is_the_third_from_the_end() {
        let told = Told::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((told.count, told.p50, told.p99, told.last), (200, 100.0, 198.0, 200.0));
        assert!(Told::of(Vec::new()).p99.is_nan());
    }
}
