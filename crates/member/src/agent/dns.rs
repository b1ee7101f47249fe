//! The resolver of this machine's programs: `tailnet::dns` behind sockets.
//!
//! ```text
//!   datagram, stream ──► from this machine? ──► Names::answer ──► Reply ───────────────► back
//!                             │ no                   └─► Forward ─► forward.rs, 256 ──► back
//!                             ▼                                      at once
//!                          dropped
//! ```
//!
//! Only programs of this machine are answered: who sends from one of the node's own addresses or
//! over loopback. The sockets come bound from outside, as port 53 needs rights that an agent has
//! not.

mod forward;
mod serve;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, TcpListener, UdpSocket},
    os::fd::BorrowedFd,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forward::Forwarder;
pub use forward::{ForwardError, MAX_RESOLVERS};
use tailnet::dns::Names;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

/// Queries that are passed on at once; the next are refused with SERVFAIL (tailscale
/// `net/dns/manager.go`).
const MAX_FORWARDED: usize = 256;
/// Connections at once; the next are closed.
const MAX_STREAMS: usize = 64;

/// What is done to a socket before it connects to a resolver, such as marking it, so that its
/// packets do not go where the queries came from.
pub type SocketHook = Arc<dyn Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync>;

/// Where queries come in. Each socket is bound to one address, which answers come from.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For datagrams.
    pub udp: Vec<UdpSocket>,
    /// For streams.
    pub tcp: Vec<TcpListener>,
}

/// The names of one map, and who may ask for them.
#[derive(Debug, Default)]
pub struct Served {
    /// What queries are answered from.
    pub names: Names,
    /// The addresses of this node.
    pub own: HashSet<IpAddr>,
}

/// What became of queries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered from the map.
    pub answered: u64,
    /// Answered by a resolver.
    pub forwarded: u64,
    /// That no resolver answered in time.
    pub failed: u64,
    /// That came while [`MAX_FORWARDED`] were under way.
    pub busy: u64,
    /// From an address that is not this machine's.
    pub strangers: u64,
}

/// A resolver that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    // Aborts what runs when it is dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    served: RwLock<Arc<Served>>,
    forwarder: Forwarder,
    forwarded: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    answered: AtomicU64,
    forwarded: AtomicU64,
    failed: AtomicU64,
    busy: AtomicU64,
    strangers: AtomicU64,
}

impl Server {
    /// Starts to serve, inside a runtime.
    ///
    /// # Errors
    /// When a socket cannot be made one of the runtime's.
    pub fn start(sockets: Sockets, served: Served, hook: SocketHook) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            served: RwLock::new(Arc::new(served)),
            forwarder: Forwarder::new(hook),
            forwarded: Arc::new(Semaphore::new(MAX_FORWARDED)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            counters: Counters::default(),
        });
        let mut tasks = JoinSet::new();
        for socket in sockets.udp {
            socket.set_nonblocking(true)?;
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            tasks.spawn(serve::datagrams(shared.clone(), Arc::new(socket)));
        }
        for listener in sockets.tcp {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tasks.spawn(serve::streams(shared.clone(), listener));
        }
        Ok(Self { shared, _tasks: tasks })
    }

    /// Serves these names from the next query on.
    pub fn set(&self, served: Served) {
        let served = Arc::new(served);
        let mut current = self.shared.served.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, served);
        drop(current);
        // The old map's memory is freed outside the lock.
        drop(old);
    }

    /// What became of queries so far.
    pub fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        Counts {
            answered: counters.answered.load(Relaxed),
            forwarded: counters.forwarded.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            busy: counters.busy.load(Relaxed),
            strangers: counters.strangers.load(Relaxed),
        }
    }
}

impl Shared {
    fn served(&self) -> Arc<Served> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A place for a connection of a program of this machine, if there is one.
    fn admit_stream(&self, sender: IpAddr) -> Option<OwnedSemaphorePermit> {
        if !self.admits(sender) {
            return None;
        }
        self.streams.clone().try_acquire_owned().ok()
    }

    /// Whether a sender is a program of this machine.
    fn admits(&self, sender: IpAddr) -> bool {
        let sender = sender.to_canonical();
        let admitted = sender.is_loopback() || self.served().own.contains(&sender);
        if !admitted {
            self.counters.strangers.fetch_add(1, Relaxed);
        }
        admitted
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}
