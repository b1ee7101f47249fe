//! Messages between the agent and the process that relays for peers ([`crate::peer_relay`]).

use serde::{Deserialize, Serialize};

use super::{Incoming, Outgoing};
use crate::{
    keys::DiscoPublic,
    peer_relay::{AllocateError, Allocation},
};

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
