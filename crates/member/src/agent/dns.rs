//! The DNS server for programs of this machine: `mesh::magic_dns` with sockets.
//!
//! ```text
//!   UDP, TCP ──► from this machine? ──► Names::answer ──► Reply ─────────────────────► client
//!                      │ no                   └─► Forward ─► forward.rs, at most 256 ──► client
//!                      ▼
//!                   dropped
//! ```
//!
//! The server answers only programs of this machine, whose packets come from one of the node's
//! addresses or over loopback. The caller binds the sockets, because port 53 needs privileges that
//! an agent does not have.

mod forward;
mod serve;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, TcpListener, UdpSocket},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::control::dial::SocketHook;
use forward::Forwarder;
pub use forward::{ForwardError, MAX_RESOLVERS};
use mesh::magic_dns::Names;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

/// The most queries that are forwarded at once. More get SERVFAIL (tailscale `net/dns/manager.go`).
const MAX_FORWARDED: usize = 256;
/// The most TCP connections at once. More are closed.
const MAX_STREAMS: usize = 64;

/// The sockets of the server. Each is bound to one address, from which answers are sent.
#[derive(Debug, Default)]
pub struct Sockets {
    /// UDP sockets.
    pub udp: Vec<UdpSocket>,
    /// TCP listeners.
    pub tcp: Vec<TcpListener>,
}

/// The names of one map, and the addresses of permitted clients.
#[derive(Debug, Default)]
pub struct Served {
    /// The names.
    pub names: Names,
    /// The addresses of this node.
    pub own: HashSet<IpAddr>,
}

/// Counters of queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries answered from the map.
    pub answered: u64,
    /// Queries answered by a resolver.
    pub forwarded: u64,
    /// Queries that no resolver answered in time.
    pub failed: u64,
    /// Queries that came while [`MAX_FORWARDED`] others were being forwarded.
    pub busy: u64,
    /// Queries and connections from other machines.
    pub strangers: u64,
}

/// A DNS server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    // Aborts its tasks on drop.
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
    /// Starts the server in the present runtime.
    ///
    /// # Errors
    /// A socket cannot be registered with the runtime.
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

    /// Replaces the names.
    pub fn set(&self, served: Served) {
        let served = Arc::new(served);
        let mut current = self.shared.served.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, served);
        drop(current);
        // Frees the old names without the lock.
        drop(old);
    }

    /// The counters.
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

    /// A permit for a connection of a program of this machine, if one is free.
    fn admit_stream(&self, sender: IpAddr) -> Option<OwnedSemaphorePermit> {
        if !self.admits(sender) {
            return None;
        }
        self.streams.clone().try_acquire_owned().ok()
    }

    /// Whether a sender is a program of this machine. Counts others.
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
