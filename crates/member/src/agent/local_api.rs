//! The local API for programs of this machine: the part of Tailscale's local HTTP interface that
//! the `tailscale` command needs (tailscale `ipn/localapi/localapi.go`), and requests of linerate's
//! own commands below `linerate/`.
//!
//! ```text
//!   program ──► connection: user (SO_PEERCRED), limits                     serve.rs, api.rs
//!                   └─► request: host header, method, permission           call.rs
//!                           └─► by path ─► Request ─► agent                routes.rs, tka.rs
//! ```
//!
//! All users of the machine may read. Root, the operator, and the user that started this process
//! without root may write. Unsupported requests get an error that the command prints. A program
//! that contains the agent sends its requests through a channel, without a socket.

#[cfg(feature = "local-api")]
mod api;
#[cfg(feature = "local-api")]
mod body;
#[cfg(feature = "local-api")]
mod call;
#[cfg(feature = "local-api")]
mod routes;
#[cfg(feature = "local-api")]
mod serve;
#[cfg(feature = "local-api")]
mod server;
#[cfg(test)]
mod tests;
#[cfg(feature = "local-api")]
mod tka;
#[cfg(feature = "local-api")]
mod unsupported;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hyper::StatusCode;
use mesh::{
    local_json::{Notify, PingKind, PingResult, StartOptions, Status, WatchMask, WhoIs, Why},
    prefs::{MaskedPrefs, Prefs, PrefsError},
    tka_command::TkaCommand,
};
use serde_json::Value;
use tailnet::keys::NodePublic;
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "local-api")]
pub use self::server::Server;

/// The most queued notifications of a program. A slower one is disconnected.
const MAX_NOTIFICATIONS: usize = 64;

/// Receives the answer to a request. It is closed when the program is gone.
pub type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// Requests of programs to the agent.
#[derive(Debug)]
pub enum Request {
    /// Returns the state, with or without peers.
    Status {
        /// Whether to include peers.
        peers: bool,
        /// The answer.
        reply: Reply<Box<Status>>,
    },
    /// Returns the preferences.
    Prefs {
        /// The answer.
        reply: Reply<Box<Prefs>>,
    },
    /// Changes preferences, by [`Prefs::edited`] and [`Prefs::check`], and returns all.
    EditPrefs {
        /// The changes.
        edits: MaskedPrefs,
        /// The answer.
        reply: Reply<Box<Prefs>>,
    },
    /// Checks whether these supported preferences may be set.
    CheckPrefs {
        /// All of them.
        prefs: Box<Prefs>,
        /// The answer.
        reply: Reply<()>,
    },
    /// Starts to connect. It is answered at once; progress is sent to watchers.
    Start {
        /// The options. Their preferences are supported and replace all except [`Prefs::login`].
        options: StartOptions,
        /// The answer.
        reply: Reply<()>,
    },
    /// Requests a login page from the coordinator. Watchers get its URL.
    LoginInteractive {
        /// The answer.
        reply: Reply<()>,
    },
    /// Logs out. It is answered afterwards.
    Logout {
        /// The answer.
        reply: Reply<()>,
    },
    /// Sends a ping and returns its result.
    Ping {
        /// The address to ping.
        ip: IpAddr,
        /// The kind of ping.
        kind: PingKind,
        /// The length of the datagram; 0 for any.
        size: u16,
        /// The answer.
        reply: Reply<PingResult>,
    },
    /// Returns the owner of an address or a key, if there is one.
    WhoIs {
        /// The address or the key.
        query: WhoIsQuery,
        /// The answer.
        reply: Reply<Option<Box<WhoIs>>>,
    },
    /// Returns the relays (`tailcfg.DERPMap`), or null.
    DerpMap {
        /// The answer.
        reply: Reply<Value>,
    },
    /// Returns the map's DNS settings (`tailcfg.DNSConfig`), or null.
    DnsConfig {
        /// The answer.
        reply: Reply<Value>,
    },
    /// Returns the whole map (`netmap.NetworkMap`), or null.
    NetMap {
        /// The answer.
        reply: Reply<Value>,
    },
    /// Returns the node with this ID (`tailcfg.Node`), or null.
    Node {
        /// The ID.
        id: i64,
        /// The answer.
        reply: Reply<Value>,
    },
    /// Returns the state of tailnet lock (`ipnstate.TailnetLockStatus`).
    TkaStatus {
        /// The answer.
        reply: Reply<Value>,
    },
    /// Changes or queries tailnet lock. It is answered afterwards.
    Tka {
        /// The command.
        command: Box<TkaCommand>,
        /// The answer.
        reply: Reply<Value>,
    },
    /// Returns the reason why this machine forwards no packets; empty if it does.
    Forwarding {
        /// The answer.
        reply: Reply<String>,
    },
    /// Subscribes a program to notifications. The mask selects the first one.
    Watch {
        /// The mask.
        mask: WatchMask,
        /// Receives the notifications.
        watcher: Watcher,
    },
    /// Explains why `NODE[:PORT]` is reached, or not.
    Why {
        /// The node, by name or address.
        target: String,
        /// The answer.
        reply: Reply<Why>,
    },
    /// Returns the report of `linerate netcheck`.
    Netcheck {
        /// The answer.
        reply: Reply<Value>,
    },
}

/// The subject of [`Request::WhoIs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhoIsQuery {
    /// An address with a port or 0.
    Address {
        /// The address.
        address: SocketAddr,
        /// `tcp`, `udp`, or empty for both.
        protocol: String,
    },
    /// A node key.
    Key(NodePublic),
}

/// An error for the program and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    fn new(status: StatusCode, text: impl fmt::Display) -> Self {
        Self { status, text: text.to_string() }
    }

    /// A failure here or in the network.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// An invalid request.
    pub fn bad(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// A request that is not possible now, for example without a map.
    pub fn not_now(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// A feature that linerate does not have.
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format_args!("not implemented by linerate: {what}"))
    }

    fn denied(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    fn absent(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }
}

impl From<PrefsError> for ApiError {
    fn from(error: PrefsError) -> Self {
        Self::bad(error)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A program that receives notifications.
#[derive(Clone, Debug)]
pub struct Watcher {
    notifications: mpsc::Sender<Arc<Notify>>,
}

/// A watcher and its channel of notifications.
pub fn watcher() -> (Watcher, mpsc::Receiver<Arc<Notify>>) {
    let (notifications, receiver) = mpsc::channel(MAX_NOTIFICATIONS);
    (Watcher { notifications }, receiver)
}

impl Watcher {
    /// Sends a notification. Returns false if the program is gone or does not read: remove the
    /// watcher.
    #[must_use]
    pub fn notify(&self, notify: &Notify) -> bool {
        self.share(&Arc::new(notify.clone()))
    }

    /// As [`Self::notify`], without a copy, for several programs.
    #[must_use]
    pub fn share(&self, notify: &Arc<Notify>) -> bool {
        self.notifications.try_send(Arc::clone(notify)).is_ok()
    }

    /// Whether the program has gone.
    pub fn is_gone(&self) -> bool {
        self.notifications.is_closed()
    }
}

/// The users who may write, in addition to root.
#[derive(Debug)]
pub struct Writers {
    user: Option<u32>,
    /// A user ID; more than 32 bits without an operator.
    operator: AtomicU64,
}

impl Writers {
    /// This user, if any, and no operator.
    pub fn new(user: Option<u32>) -> Self {
        Self { user, operator: AtomicU64::new(u64::MAX) }
    }

    /// Sets or removes the operator ([`Prefs::operator_user`]).
    pub fn set_operator(&self, operator: Option<u32>) {
        self.operator.store(operator.map_or(u64::MAX, u64::from), Relaxed);
    }

    fn has(&self, user: u32) -> bool {
        user == 0 || self.user == Some(user) || u64::from(user) == self.operator.load(Relaxed)
    }
}
