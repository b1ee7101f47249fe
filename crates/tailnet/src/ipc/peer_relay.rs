//! The line between the agent and the process that relays for peers ([`crate::peer_relay`]).

use serde::{Deserialize, Serialize};

use super::{Incoming, Outgoing};
use crate::{
    keys::DiscoPublic,
    peer_relay::{AllocateError, Allocation},
};

/// From the agent to the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRelayServer {
    /// An agent begins. It is answered by [`FromRelayServer::Ready`].
    Hello,
    /// Make an endpoint. Answered by [`FromRelayServer::Allocated`].
    Allocate {
        /// The number of the request.
        id: u32,
        /// Who asks.
        requested_by: DiscoPublic,
        /// The two that are to use it.
        clients: [DiscoPublic; 2],
    },
    /// Datagrams of STUN, for its socket.
    Datagrams(Vec<Outgoing>),
}

/// From the relay to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRelayServer {
    /// It relays.
    Ready {
        /// Its key, another after each start.
        key: DiscoPublic,
        /// Its UDP port.
        port: u16,
    },
    /// It cannot, for this reason, and ends.
    Failed(String),
    /// The endpoint that was asked for.
    Allocated {
        /// The number of the request.
        id: u32,
        /// It, or why there is none.
        endpoint: Result<Allocation, AllocateError>,
    },
    /// Datagrams of STUN that came to its socket.
    Datagrams(Vec<Incoming>),
}
