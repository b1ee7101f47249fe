//! Limits connections by source and service, and closes idle ones to make room: no source blocks
//! another at a service, and no service blocks the clients of the proxies.
//!
//! ```text
//!   accepted ─► Connections::admit ─► Connection ── touch, when bytes move ── dropped
//!                 | over a limit       ▲ evicted: its task closes it
//!                 ├─ evict one that has long been idle
//!                 └─ else refuse, by RST; a client before its request waits instead
//! ```
//!
//! The evicted connection belongs to the source with the most connections if that has more than the
//! newcomer's source; otherwise to the newcomer's source. It is the one that moved bytes longest ago.

mod table;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use wg::PublicKey;

use super::{capacity::Capacity, half_open::Client};
pub(super) use table::{Counters, Refused};
use table::{Entry, Full, Table};

/// How often a client that waits to be admitted checks for others that have become silent.
const RECHECK: Duration = Duration::from_millis(100);

/// How long a client that has sent its request waits for room: by then another has been idle for long
/// enough, or all are busy.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The group that a connection counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// Clients on this side that have not sent a request yet.
    BeforeRequest,
    /// Clients on this side.
    Clients,
    /// Clients in the tunnel, of the exposed service with this number.
    Exposed(usize),
}

/// The client or peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A client on this side.
    Client(Client),
    /// A peer, whichever address of its allowed IPs it uses: it may have many.
    Peer(PublicKey),
}

/// All connections of a process. Clones share the table.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    table: Mutex<Table>,
    /// A client has sent its request, or has left before that.
    left_before_request: Notify,
    /// Another connection has ended.
    ended: Notify,
}

/// A connection. It counts until this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    connections: Connections,
    group: Group,
    source: Source,
    entry: Arc<Entry>,
}

/// Shared between a connection's task and the table.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// When bytes moved last, in nanoseconds since the process began.
    last_move: AtomicU64,
    is_evicted: AtomicBool,
    evicted: Notify,
}

impl Connections {
    pub(crate) fn new(capacity: Capacity) -> Self {
        let table = Mutex::new(Table::new(capacity));
        Self(Arc::new(Shared {
            began: Instant::now(),
            table,
            left_before_request: Notify::new(),
            ended: Notify::new(),
        }))
    }

    /// Admits a connection that uses this number of descriptors.
    ///
    /// # Errors
    /// A limit is reached, and no connection can be evicted.
    pub(crate) fn admit(
        &self,
        group: Group,
        source: Source,
        descriptors: usize,
    ) -> Result<Connection, Refused> {
        self.admit_since(group, source, descriptors, self.now())
    }

    /// Admits a client that has not sent its request yet and has been silent for `silent`. It waits
    /// while the limit of such clients is reached and none of them has been silent for two seconds.
    ///
    /// # Errors
    /// Another limit is reached.
    pub(crate) async fn admit_before_request(
        &self,
        source: Source,
        silent: Duration,
    ) -> Result<Connection, Refused> {
        let since = self.now().saturating_sub(silent);
        loop {
            let asked = self.0.left_before_request.notified();
            match self.admit_since(Group::BeforeRequest, source, 1, since) {
                Err(Refused::BeforeRequest) => {}
                admitted => return admitted,
            }
            // The time is up, or there is room: both are checked above.
            let _ = timeout(RECHECK, asked).await;
        }
    }

    fn admit_since(
        &self,
        group: Group,
        source: Source,
        descriptors: usize,
        last_move: Duration,
    ) -> Result<Connection, Refused> {
        let source = source.canonical();
        let activity = Arc::new(Activity::default());
        activity.set_last_move(last_move);
        let entry = self.lock().admit((group, source), activity, descriptors, self.now())?;
        Ok(Connection { connections: self.clone(), group, source, entry })
    }

    /// The numbers of refused and evicted connections.
    pub(crate) fn counters(&self) -> Counters {
        self.lock().counters()
    }

    fn now(&self) -> Duration {
        Instant::now() - self.0.began
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Notes that bytes moved.
    pub(crate) fn touch(&self) {
        self.entry.activity.set_last_move(self.connections.now());
    }

    /// Moves the connection to another group, with this number of descriptors.
    ///
    /// # Errors
    /// A limit is reached, and no connection can be evicted. It stays in its group.
    pub(crate) fn change_group(&mut self, group: Group, descriptors: usize) -> Result<(), Refused> {
        let now = self.connections.now();
        self.entry.activity.set_last_move(now);
        let (from, to) = ((self.group, self.source), (group, self.source));
        self.entry = self.connections.lock().replace(&self.entry, from, (to, descriptors), now)?;
        self.wake_waiting(from.0);
        self.group = group;
        Ok(())
    }

    /// The same for a client that has sent its request. If all connections are busy, it waits for a
    /// while.
    ///
    /// # Errors
    /// As for [`Self::change_group`].
    pub(crate) async fn wait_to_change_group(
        &mut self,
        group: Group,
        descriptors: usize,
    ) -> Result<(), Refused> {
        let until = Instant::now() + ADMISSION_TIMEOUT;
        let key = (group, self.source);
        while Instant::now() < until {
            let ended = self.connections.0.ended.notified();
            let now = self.connections.now();
            match self.connections.lock().make_room(key, descriptors, now) {
                Err(Full::Source | Full::Side | Full::All) => {}
                _ => break,
            }
            // It is not silent: it waits for us.
            self.touch();
            let _ = timeout(RECHECK, ended).await;
        }
        self.change_group(group, descriptors)
    }

    /// Wakes the clients that wait, which then check whether there is room.
    fn wake_waiting(&self, group: Group) {
        if group == Group::BeforeRequest {
            self.connections.0.left_before_request.notify_waiters();
        } else {
            self.connections.0.ended.notify_one();
        }
    }

    /// The activity, to wait for its eviction ([`Activity::evicted`]).
    pub(crate) fn activity(&self) -> Arc<Activity> {
        self.entry.activity.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.lock().remove((self.group, self.source), &self.entry);
        self.wake_waiting(self.group);
    }
}

impl Activity {
    fn set_last_move(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.last_move.store(nanos, Ordering::Relaxed);
    }

    fn last_move(&self) -> Duration {
        Duration::from_nanos(self.last_move.load(Ordering::Relaxed))
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        self.evicted.notify_waiters();
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        let evicted = self.evicted.notified();
        if !self.is_evicted.load(Ordering::Acquire) {
            evicted.await;
        }
    }
}

impl Source {
    /// An IPv6 host may use any address of its /64 network, which therefore counts as one.
    fn canonical(self) -> Self {
        match self {
            Self::Client(Client::Ip(ip)) => {
                let ip = ip.to_canonical();
                Self::Client(Client::Ip(if ip.is_loopback() {
                    ip
                } else {
                    packet::host_prefix(ip)
                }))
            }
            other => other,
        }
    }

    /// Whether the limit of a source applies. It does not for local programs, which share an address.
    fn has_limit(&self) -> bool {
        match self {
            Self::Client(Client::Ip(ip)) => !ip.is_loopback(),
            Self::Client(Client::User(_)) => false,
            Self::Peer(_) => true,
        }
    }
}

#[cfg(test)]
mod tests;
