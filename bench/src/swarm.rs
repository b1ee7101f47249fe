//! The generator of a network's load: nodes by the thousand, each a client of the real protocol over
//! a connection of its own (TLS, Noise, HTTP/2), all in this process. They carry no packets.
//!
//! ```text
//!   swarm ── entrance: so many at a time ──► node: register, map, update     one task each
//!     ▲                                        │
//!     └── whole, first, bytes, troubles ───────┘ known: which peers it was told of
//! ```
//!
//! It prints a line once all nodes know all others, or the time is over; then the network stands
//! until stdin ends. A line `rules` on stdin is answered once all nodes were told other rules.

mod known;
mod node;

pub use self::node::{node_key, public_key};

use std::error::Error;
use std::fmt;
use std::io::stdin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use member::agent::control::dial::{Dialer, tls};
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
    /// A key that any number of nodes may join with.
    pub auth_key: String,
    /// How many nodes.
    pub count: usize,
    /// How many of them at most wait for their first map at a time.
    pub at_once: usize,
    /// How long they have.
    pub limit: Duration,
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
        times.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (times.len() as f64 * part).ceil() as usize;
            times.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
        };
        Told { count: times.len(), p50: at(0.5), p99: at(0.99), last: at(1.0) }
    }

    /// The line that says so.
    pub fn parse(line: &str) -> Option<Told> {
        let mut words = line.strip_prefix("told ")?.split_whitespace();
        let count = words.next()?.parse().ok()?;
        let mut next = || words.next()?.parse().ok();
        Some(Told { count, p50: next()?, p99: next()?, last: next()? })
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { count, p50, p99, last } = self;
        write!(f, "told {count} {p50:.6} {p99:.6} {last:.6}")
    }
}

impl Swarm {
    /// Joins, and stays until stdin ends.
    ///
    /// # Errors
    /// There is no runtime, or the authority is none.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
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
        let begun = Instant::now();
        for number in 0..self.swarm.count {
            tokio::spawn(node::live(Arc::clone(&self), number));
        }
        let all_are_whole = async {
            while self.whole.load(Relaxed) < self.swarm.count {
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
        while let Some(line) = lines.recv().await {
            if line == "rules" {
                self.wait_for_rules().await;
            }
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
            while self.told().len() < self.swarm.count {
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.told().push(now.as_secs_f64());
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
    use super::{Joined, Told};

    #[test]
    fn what_is_said_is_read() {
        let joined =
            Joined { whole: 1, first: 2, seconds: 0.25, bytes: 3, unpacked: 4, troubles: 5 };
        assert_eq!(Joined::parse(&joined.to_string()), Some(joined));
        let told = Told { count: 7, p50: 1.5, p99: 2.5, last: 3.25 };
        assert_eq!(Told::parse(&told.to_string()), Some(told));
        assert_eq!((Joined::parse("joined 1"), Told::parse("joined 1 2 3 4")), (None, None));
    }

    #[test]
    fn of_two_hundred_the_99th_percentile_is_the_third_from_the_end() {
        let told = Told::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((told.count, told.p50, told.p99, told.last), (200, 100.0, 198.0, 200.0));
        assert!(Told::of(Vec::new()).p99.is_nan());
    }
}
