//! The state of paths for users.

use std::{net::SocketAddr, time::Duration};

use ipc::Path;

/// The state of the path to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathView {
    /// The path of its datagrams.
    pub path: Option<Path>,
    /// The latency of the direct path, otherwise of the relay.
    pub latency: Option<Duration>,
    /// The last sign of life of the direct path.
    pub alive: Option<Duration>,
    /// The region of its relay.
    pub relay: Option<u16>,
    /// The time when the relay reported that the peer is not connected.
    pub relay_gone: Option<Duration>,
    /// The time of the last sent packet.
    pub sent: Option<Duration>,
    /// The time of the last received packet.
    pub received: Option<Duration>,
    /// The time of its last call.
    pub called: Option<Duration>,
    /// The number of unsuccessful rounds since a direct path was needed or lost.
    pub rounds: u8,
    /// The candidate endpoints.
    pub candidates: Vec<Candidate>,
    /// The outcome of birthday probing.
    pub birthday: BirthdayOutcome,
}

/// The outcome of the last birthday probing with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BirthdayOutcome {
    /// Not attempted.
    #[default]
    NotTried,
    /// The peer did not answer. Stock nodes do not support it.
    NotAnswered(Duration),
    /// No probe reached a socket.
    Failed(Duration),
    /// A path was found.
    Succeeded(Duration),
    /// A path was found and lost later.
    Lost(Duration),
}

/// A candidate endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub addr: SocketAddr,
    /// The origins.
    pub origins: Origins,
    /// The outcome of pings.
    pub outcome: ProbeOutcome,
}

/// The origins of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// The map.
    pub map: bool,
    /// The peer's last call.
    pub call: bool,
    /// A received ping or data.
    pub received: bool,
}

/// The outcome of pings to a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// No ping was sent.
    NotTried,
    /// No ping was answered.
    NeverAnswered {
        /// The time of the last ping.
        last: Duration,
    },
    /// A ping was answered.
    Answered {
        /// The time of the last pong.
        at: Duration,
        /// The latency.
        latency: Duration,
    },
}
