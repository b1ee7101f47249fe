//! The coordinator, as this machine speaks to it.
//!
//! ```text
//!   Command --> run --> session: one goal at a time          (session)
//!   Event  <--            | join, be there, leave
//!                         |  register, updates               (session)
//!                         |  the map's stream                (map)
//!                         |  answers to pings                (ping)
//!                         |  questions about tailnet lock    (lock)
//!                         v
//!                       HTTP/2                               (requests, connection)
//!                       Noise                                (stream)
//!                       TLS or not, proxies, both families   (dial)
//! ```
//!
//! [`run`] keeps trying until it is told otherwise, and tells each time why it does not work
//! ([`Trouble`]). It decides nothing about keys: they are the data plane's. Where a login needs
//! another node key it says so, and waits for the [`Command::Login`] that has one. Of what
//! a map says, it knows the [`MapHead`]. One that cannot be read ends the connection: what comes
//! behind it builds on it.
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
use tailnet::{
    control::{
        dial::ControlUrl,
        messages::{Announced, MapHead},
        register::{Login, Registered},
    },
    keys::{MachineKey, MachinePublic, NodePublic},
    messages::MapResponse,
    tka::follow::Question,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub use self::session::random;
use self::{dial::Dialer, error::ControlError};

/// What is the same as long as the agent lives.
pub struct Settings<C = Dialer> {
    /// The coordinator.
    pub url: ControlUrl,
    /// The coordinator's key; zero accepts the one that it has, which [`Event::ServerKey`] names.
    pub server_key: MachinePublic,
    /// The key of this machine.
    pub machine_key: MachineKey,
    /// How it is reached.
    pub dialer: C,
}

/// What the session is to do; it ends when nobody can tell it any more. The first must be an [`Command::Update`]: a coordinator wants to know
/// whom it registers.
#[derive(Debug)]
pub enum Command {
    /// Register this node key, then stay connected with it. Ends what was before.
    Login(Login),
    /// This node key is registered: stay connected with it, and register it only if the coordinator
    /// does not know it. Ends what was before.
    Resume(Login),
    /// This is what the node is now. The coordinator is told whenever it is connected.
    Update(Box<Announced>),
    /// Send this to answer a ping of the coordinator.
    Answer {
        /// Where, as the ping says.
        url: String,
        /// Whether over Noise, as the ping says.
        over_noise: bool,
        /// What.
        body: Vec<u8>,
    },
    /// Ask this about tailnet lock. Ends what was asked before.
    TkaRequest(Question),
    /// Give up this node key at the coordinator, then be idle.
    Logout(NodePublic),
    /// The network changed: connect again, at once.
    Reconnect,
}

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// The coordinator proved that it has this key, and no other was expected: from now on no other is
    /// accepted.
    ServerKey(MachinePublic),
    /// The first map of a stream is here: it comes next.
    Connected {
        /// Whether it has what changed since the last one that was taken; else it is complete.
        resumed: bool,
    },
    /// The connection ended, or did not come about. It is tried again after a while.
    Disconnected {
        /// Why.
        why: ControlError,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// A person must log in at this URL.
    AuthUrl(String),
    /// The node key is registered: it may be kept.
    Registered(Registered),
    /// The node key has expired, or is to be signed: log in with another one. Until then the session
    /// is idle.
    NeedsNewNodeKey {
        /// The signature that is to be made anew for it, in base64, where tailnet lock is on.
        signature: Option<String>,
    },
    /// The coordinator refuses to register the node key, in these words. It is asked again after a
    /// while.
    Refused {
        /// Its words.
        why: String,
        /// When it is asked again.
        retry_in: Duration,
    },
    /// A map, or a change to it, or a sign of life with what comes along.
    Map {
        /// What concerns the session, and pings that are not answered by it.
        head: MapHead,
        /// All of it.
        map: Box<MapResponse>,
        /// Its room among the maps that wait.
        room: OwnedSemaphorePermit,
    },
    /// The answer to a question about tailnet lock.
    TkaResponse {
        /// The question's number.
        number: u32,
        /// In JSON, unread; or why there is none.
        answer: Result<Bytes, ControlError>,
    },
    /// The node key is given up.
    LoggedOut,
}

/// Speaks to a coordinator until nobody tells it anything any more, or nobody listens.
pub async fn run(
    settings: Settings,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
) {
    session::Session::new(settings, events).run(commands).await;
}

#[cfg(test)]
pub(super) mod tests;
