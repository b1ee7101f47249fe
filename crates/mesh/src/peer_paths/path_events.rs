//! The inputs and outputs of [`super::Paths`].

use std::{net::SocketAddr, time::Duration};

use ipc::{AuxiliarySocket, LocalAddress, Path};
use tailnet::{
    disco::{Message, TxId},
    geneve::Vni,
    keys::{DiscoPublic, NodePublic},
};

/// The path of a received disco message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Received by the UDP socket.
    Udp {
        /// The sender.
        remote: SocketAddr,
        /// The local address.
        local: Option<LocalAddress>,
    },
    /// Received by the UDP socket through or from a peer relay.
    PeerRelay {
        /// The relay.
        at: SocketAddr,
        /// The relay's endpoint.
        vni: Vni,
    },
    /// Received by an auxiliary socket from its peer.
    Auxiliary {
        /// The sender.
        remote: SocketAddr,
        /// The socket.
        socket: AuxiliarySocket,
    },
    /// Through a relay.
    Relay {
        /// The relay's region.
        region: u16,
        /// The sender.
        from: NodePublic,
    },
}

/// The path of a disco message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// From the UDP socket.
    Udp {
        /// The receiver.
        addr: SocketAddr,
        /// The source; `None` lets the routing table decide.
        source: Option<LocalAddress>,
        /// The TTL or hop limit; `None` for the default.
        hops: Option<u8>,
    },
    /// From the UDP socket, through or to a peer relay.
    PeerRelay {
        /// The relay.
        addr: SocketAddr,
        /// The relay's endpoint.
        vni: Vni,
        /// Whether the message is for the relay itself.
        control: bool,
    },
    /// From the UDP socket to a random port, for birthday probing.
    BirthdayProbe(SocketAddr),
    /// From an auxiliary socket.
    Auxiliary {
        /// The receiver.
        addr: SocketAddr,
        /// The socket.
        socket: AuxiliarySocket,
    },
    /// Through a relay.
    Relay {
        /// The relay's region.
        region: u16,
        /// The receiver.
        peer: NodePublic,
    },
}

/// A disco message to seal and send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The path.
    pub to: To,
    /// The key of the receiver.
    pub disco: DiscoPublic,
    /// The message.
    pub message: Message,
}

/// The traffic of a peer's sessions since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were sent, or passed to a relay.
    pub sent: u64,
    /// Authentic bytes received.
    pub received: u64,
    /// The path of the last received packet.
    pub received_from: Option<Path>,
}

/// An action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Changes the path to a peer; `None` disables it. A direct path was proven by a pong, unless
    /// the relay of the peer is unknown.
    UsePath {
        /// The peer.
        peer: NodePublic,
        /// The path.
        path: Option<Path>,
    },
    /// Starts a handshake, because the peer has its first path or has restarted.
    HandshakeNow(NodePublic),
    /// A ping of [`super::Paths::ping`] was answered.
    Pong {
        /// The peer.
        peer: NodePublic,
        /// The return value of [`super::Paths::ping`].
        number: u32,
        /// The path.
        via: Path,
        /// The round trip.
        latency: Duration,
    },
    /// Determines our endpoints and passes them to [`super::Paths::set_own_endpoints`]. Calls wait
    /// for this up to a second.
    RefreshEndpoints,
    /// Opens auxiliary sockets, sends a ping from each, and calls
    /// [`super::Paths::handle_sockets_opened`].
    OpenSockets(SocketsToOpen),
    /// Retains this auxiliary socket, and closes all others of its group.
    RetainSocket(AuxiliarySocket),
    /// Closes the auxiliary sockets of the group with this number.
    CloseSockets(u32),
}

/// Auxiliary sockets to open, and the ping that each sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketsToOpen {
    /// The peer.
    pub peer: NodePublic,
    /// The peer's key for disco messages.
    pub disco: DiscoPublic,
    /// The number of the group.
    pub number: u32,
    /// The destination of the ping.
    pub to: SocketAddr,
    /// The number of sockets.
    pub count: u16,
    /// The TTL of the ping.
    pub hops: u8,
    /// The ping's number.
    pub tx: TxId,
}
