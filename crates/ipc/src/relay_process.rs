//! Messages between the agent and the process that relays for peers (`peer_relay` of the crate
//! `mesh`).

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tailnet::{geneve::Vni, keys::DiscoPublic};

use crate::data_plane_messages::{Incoming, Outgoing};

/// A message from the agent to the relay process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRelayServer {
    /// An agent started. Answered by [`FromRelayServer::Ready`].
    Hello,
    /// Creates an endpoint. Answered by [`FromRelayServer::Allocated`].
    Allocate {
        /// The ID of the request.
        id: u32,
        /// The requesting client.
        requested_by: DiscoPublic,
        /// The two clients of the endpoint.
        clients: [DiscoPublic; 2],
    },
    /// STUN datagrams for the relay's socket.
    Datagrams(Vec<Outgoing>),
}

/// A message from the relay process to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRelayServer {
    /// The relay is ready.
    Ready {
        /// Its key, which changes with each start.
        key: DiscoPublic,
        /// Its UDP port.
        port: u16,
    },
    /// The relay cannot start for this reason. The process exits.
    Failed(String),
    /// The answer to [`ToRelayServer::Allocate`].
    Allocated {
        /// The ID of the request.
        id: u32,
        /// The endpoint.
        endpoint: Result<Allocation, AllocateError>,
    },
    /// STUN datagrams that the relay's socket received.
    Datagrams(Vec<Incoming>),
}

/// An endpoint, as sent to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The relay's key.
    pub server: DiscoPublic,
    /// The two clients, ordered by key.
    pub clients: [DiscoPublic; 2],
    /// A number larger than that of any previous endpoint.
    pub lamport: u64,
    /// The identifier in the header of its datagrams.
    pub vni: Vni,
    /// How long it waits for both clients.
    pub bind_lifetime: Duration,
    /// How long it exists without data of both clients.
    pub steady_lifetime: Duration,
}

/// The reason why no endpoint was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateError {
    /// The clients are equal, or one is zero or the relay.
    BadClients,
    /// The limit of all endpoints, or that of the requesting client, is reached.
    Full,
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadClients => "an endpoint needs two different nodes other than the relay",
            Self::Full => "the maximum number of endpoints is reached",
        })
    }
}

impl std::error::Error for AllocateError {}
