//! The client side of the coordinator's protocol.
//!
//! ```text
//!   Command --> run --> session: one goal at a time          (session)
//!   Event  <--            | register, follow the map, log out
//!                         |  registrations, updates          (session)
//!                         |  the stream of maps              (map)
//!                         |  answers to pings                (ping)
//!                         |  requests about tailnet lock     (tka)
//!                         v
//!                       HTTP/2                               (requests, connection)
//!                       Noise                                (stream)
//!                       TLS or not, proxies, both families   (dial)
//! ```
//!
//! [`run`] pursues its goal until another command arrives, and reports each failure
//! ([`ControlError`]). It decides nothing about keys, which belong to the data plane. If a login
//! needs another node key, it reports that and waits for a [`Command::Login`] with one. It parses
//! only the [`MapHead`] of a map. An unreadable map ends the connection, because later maps depend
//! on it.
//!
//! [`run`]: run()

pub mod connection;
pub mod dial;
pub mod error;
mod map;
mod ping;
mod requests;
mod session;
mod tka;

use std::time::Duration;

use bytes::Bytes;
use mesh::{
    dialing::ControlUrl,
    registration::{Login, Registered},
    tka_follower::SyncRequest,
};
use tailnet::{
    keys::{MachineKey, MachinePublic, NodePublic},
    map_messages::MapResponse,
    ts2021::requests::{Announcement, MapHead},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub use self::session::random;
use self::{dial::Dialer, error::ControlError};

/// The constant settings of a session.
pub struct Settings<C = Dialer> {
    /// The coordinator.
    pub url: ControlUrl,
    /// The coordinator's key. If zero, the session accepts any key and reports it by
    /// [`Event::ServerKey`].
    pub server_key: MachinePublic,
    /// The key of this machine.
    pub machine_key: MachineKey,
    /// Opens the connections.
    pub dialer: C,
}

/// Commands to a session, which ends when their channel is closed. The first must be a
/// [`Command::Update`], which registrations need.
#[derive(Debug)]
pub enum Command {
    /// Registers this node key, then follows its map. Replaces the previous goal.
    Login(Login),
    /// Follows the map of this registered node key. Registers it only if the coordinator does not
    /// know it. Replaces the previous goal.
    Resume(Login),
    /// The present state of the node. The session sends it to the coordinator at each connect.
    Update(Box<Announcement>),
    /// Answers a ping of the coordinator.
    Answer {
        /// The URL, from the ping.
        url: String,
        /// Whether over Noise, from the ping.
        over_noise: bool,
        /// The body.
        body: Vec<u8>,
    },
    /// Sends a request about tailnet lock. Replaces the previous request.
    TkaRequest(SyncRequest),
    /// Logs this node key out, then waits.
    Logout(NodePublic),
    /// The network changed: connects again at once.
    Reconnect,
}

/// Events of a session.
#[derive(Debug)]
pub enum Event {
    /// The coordinator proved that it has this key. From now on no other key is accepted.
    ServerKey(MachinePublic),
    /// A stream started. Its first map is the next event.
    Connected {
        /// Whether the stream continues from the last map that was received. Otherwise the first
        /// map is complete.
        resumed: bool,
    },
    /// The connection ended or failed. The session connects again.
    Disconnected {
        /// The reason.
        why: ControlError,
        /// The delay before the next attempt.
        retry_in: Duration,
    },
    /// The user must log in at this URL.
    AuthUrl(String),
    /// The node key is registered and can be stored.
    Registered(Registered),
    /// The node key has expired or needs a signature: log in with another one. Until then the
    /// session waits.
    NeedsNewNodeKey {
        /// The signature to renew for it, in base64, if tailnet lock is on.
        signature: Option<String>,
    },
    /// The coordinator refuses to register the node key. The session tries again.
    Refused {
        /// The coordinator's message.
        why: String,
        /// The delay before the next attempt.
        retry_in: Duration,
    },
    /// A map, a change to it, or a keepalive with its contents.
    Map {
        /// The part for the session, and pings that the session did not answer.
        head: MapHead,
        /// The whole map.
        map: Box<MapResponse>,
        /// Its share of the memory for pending maps.
        room: OwnedSemaphorePermit,
    },
    /// The response to a request about tailnet lock.
    TkaResponse {
        /// The number of the request.
        number: u32,
        /// The response, as unparsed JSON.
        answer: Result<Bytes, ControlError>,
    },
    /// The node key is logged out.
    LoggedOut,
}

/// Runs a session with a coordinator until the channel of commands or of events is closed.
pub async fn run(
    settings: Settings,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
) {
    session::Session::new(settings, events).run(commands).await;
}

#[cfg(test)]
pub(super) mod tests;
