//! The socket where programs of this machine ask the node: Tailscale's local HTTP interface, as far
//! as the `tailscale` command needs it (tailscale `ipn/localapi/localapi.go`), and what linerate's
//! own commands ask beyond that, below `linerate/`.
//!
//! ```text
//!   program ──► connection: who is it? (SO_PEERCRED), how many has it?     serve.rs
//!                   └─► request: is it for us? may it?                     call.rs
//!                           └─► by its path ─► Request ─► the agent        routes.rs
//! ```
//!
//! All users of the machine may read; root and the operator may write, and the user that started this
//! process without root.
//! What is not there says so in an error that the command prints. A program that the agent is a part
//! of makes its requests itself, and there is no socket.

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

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hyper::StatusCode;
use serde_json::Value;
use tailnet::{
    keys::NodePublic,
    local::{Notify, PingKind, PingResult, StartOptions, Status, WatchMask, WhoIs, Why},
    prefs::{BadPrefs, MaskedPrefs, Prefs},
    tka::order::Order,
};
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "local-api")]
pub use self::server::Server;

/// News that may wait for a program to read them. One that is slower has to ask again.
const MAX_NOTIFICATIONS: usize = 64;

/// Where the answer to a request goes. It is closed when nobody waits any more.
pub type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// What a program asks of the agent.
#[derive(Debug)]
pub enum Request {
    /// The state, with peers or without.
    Status {
        /// Whether peers are asked for.
        peers: bool,
        /// The answer.
        reply: Reply<Box<Status>>,
    },
    /// The preferences.
    Prefs {
        /// The answer.
        reply: Reply<Box<Prefs>>,
    },
    /// Changes preferences, by [`Prefs::edited`] and [`Prefs::check`], and answers with all.
    EditPrefs {
        /// The changes.
        edits: MaskedPrefs,
        /// The answer.
        reply: Reply<Box<Prefs>>,
    },
    /// Whether these preferences, which linerate can do, may be set.
    CheckPrefs {
        /// All of them.
        prefs: Box<Prefs>,
        /// The answer.
        reply: Reply<()>,
    },
    /// Begins to be connected. Answered at once; the rest is news for watchers.
    Start {
        /// How. Preferences in it replace all but [`Prefs::login`], and linerate can do them.
        options: StartOptions,
        /// The answer.
        reply: Reply<()>,
    },
    /// Asks the coordinator for a page to log in at, which watchers are told.
    LoginInteractive {
        /// The answer.
        reply: Reply<()>,
    },
    /// Ends the login, and is answered when that is done.
    Logout {
        /// The answer.
        reply: Reply<()>,
    },
    /// Sends one ping, and is answered with its result.
    Ping {
        /// What to ping.
        ip: IpAddr,
        /// How.
        kind: PingKind,
        /// How long the datagram is to be; 0 for no matter.
        size: u16,
        /// The answer.
        reply: Reply<PingResult>,
    },
    /// Whose an address or a key is; `None` where it is nobody's.
    WhoIs {
        /// The address or key.
        query: WhoIsQuery,
        /// The answer.
        reply: Reply<Option<Box<WhoIs>>>,
    },
    /// The relays (`tailcfg.DERPMap`), or null.
    DerpMap {
        /// The answer.
        reply: Reply<Value>,
    },
    /// The map's DNS settings (`tailcfg.DNSConfig`), or null.
    DnsConfig {
        /// The answer.
        reply: Reply<Value>,
    },
    /// The whole map (`netmap.NetworkMap`), or null.
    NetMap {
        /// The answer.
        reply: Reply<Value>,
    },
    /// A node by its number (`tailcfg.Node`), or null.
    Node {
        /// The number.
        id: i64,
        /// The answer.
        reply: Reply<Value>,
    },
    /// The state of tailnet lock (`ipnstate.TailnetLockStatus`).
    TkaStatus {
        /// The answer.
        reply: Reply<Value>,
    },
    /// Does something to tailnet lock, and is answered when that is done.
    Tka {
        /// What.
        order: Box<Order>,
        /// The answer.
        reply: Reply<Value>,
    },
    /// What keeps this machine from forwarding packets; empty for nothing.
    Forwarding {
        /// The answer.
        reply: Reply<String>,
    },
    /// Takes a program among those that are told news. What the mask asks for at once is told
    /// first.
    Watch {
        /// What is asked for.
        mask: WatchMask,
        /// Where news go.
        watcher: Watcher,
    },
    /// What is in the way to `NODE[:PORT]`.
    Why {
        /// The node, by name or address.
        target: String,
        /// The answer.
        reply: Reply<Why>,
    },
    /// A fresh look at the network around: `linerate netcheck`'s own report.
    Netcheck {
        /// The answer.
        reply: Reply<Value>,
    },
}

/// What [`Request::WhoIs`] asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhoIsQuery {
    /// An address, and a port or 0.
    Address {
        /// The address.
        address: SocketAddr,
        /// `tcp`, `udp`, or empty for both.
        protocol: String,
    },
    /// A node key.
    Key(NodePublic),
}

/// Why a request is not done, for the program and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    fn new(status: StatusCode, text: impl fmt::Display) -> Self {
        Self { status, text: text.to_string() }
    }

    /// It failed here or in the network.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// It makes no sense.
    pub fn bad(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// It cannot be done now, such as without a map.
    pub fn not_now(text: impl fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// linerate does not do this.
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

impl From<BadPrefs> for ApiError {
    fn from(error: BadPrefs) -> Self {
        Self::bad(error)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A program that is told news.
#[derive(Clone, Debug)]
pub struct Watcher {
    notifications: mpsc::Sender<Arc<Notify>>,
}

/// A watcher, and what it is told.
pub fn watcher() -> (Watcher, mpsc::Receiver<Arc<Notify>>) {
    let (notifications, receiver) = mpsc::channel(MAX_NOTIFICATIONS);
    (Watcher { notifications }, receiver)
}

impl Watcher {
    /// Tells news; false once the program has gone or does not read: it is to be forgotten then.
    #[must_use]
    pub fn notify(&self, notify: &Notify) -> bool {
        self.share(&Arc::new(notify.clone()))
    }

    /// Sends news without a copy, for several programs; false as above.
    #[must_use]
    pub fn share(&self, notify: &Arc<Notify>) -> bool {
        self.notifications.try_send(Arc::clone(notify)).is_ok()
    }

    /// Whether the program has gone.
    pub fn is_gone(&self) -> bool {
        self.notifications.is_closed()
    }
}

/// Who may write beside root.
#[derive(Debug)]
pub struct Writers {
    user: Option<u32>,
    /// A user's number; more than 32 bits for nobody.
    operator: AtomicU64,
}

impl Writers {
    /// This user, if any, and no operator yet.
    pub fn new(user: Option<u32>) -> Self {
        Self { user, operator: AtomicU64::new(u64::MAX) }
    }

    /// Makes a user the operator ([`Prefs::operator_user`]), or nobody.
    pub fn set_operator(&self, operator: Option<u32>) {
        self.operator.store(operator.map_or(u64::MAX, u64::from), Relaxed);
    }

    fn has(&self, user: u32) -> bool {
        user == 0 || self.user == Some(user) || u64::from(user) == self.operator.load(Relaxed)
    }
}
