//! What [`super::Paths`] hears and says.

use std::{net::SocketAddr, time::Duration};

use super::{AuxiliarySocket, LocalAddress, Path};
use crate::{
    disco::{Message, TxId},
    keys::{DiscoPublic, NodePublic},
    peer_relay::Vni,
};

/// How a disco message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// To the UDP socket.
    Udp {
        /// The sender.
        remote: SocketAddr,
        /// What it reached.
        local: Option<LocalAddress>,
    },
    /// To the UDP socket, by a peer relay or from it.
    PeerRelay {
        /// The relay.
        at: SocketAddr,
        /// Which of its endpoints.
        vni: Vni,
    },
    /// To an auxiliary socket, from where that is for.
    Auxiliary {
        /// The sender.
        remote: SocketAddr,
        /// Which.
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

/// How a disco message is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// From the UDP socket.
    Udp {
        /// The receiver.
        addr: SocketAddr,
        /// Where from; `None` leaves it to the routing table.
        source: Option<LocalAddress>,
        /// How many routers it may pass; `None` for as many as any other.
        hops: Option<u8>,
    },
    /// From the UDP socket, to a peer relay or by it.
    PeerRelay {
        /// The relay.
        addr: SocketAddr,
        /// Which of its endpoints.
        vni: Vni,
        /// Whether it is for the relay itself.
        control: bool,
    },
    /// From the UDP socket, to a port that may lead to the peer by chance.
    BirthdayProbe(SocketAddr),
    /// From an auxiliary socket.
    Auxiliary {
        /// The receiver.
        addr: SocketAddr,
        /// Which socket.
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

/// A disco message to be sealed and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// How.
    pub to: To,
    /// Whom it is sealed for.
    pub disco: DiscoPublic,
    /// What.
    pub message: Message,
}

/// What a peer's sessions carried since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent, or given to a relay.
    pub sent: u64,
    /// Authentic bytes received.
    pub received: u64,
    /// Where the last of them came from.
    pub received_from: Option<Path>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Datagrams for a peer go there from now on; `None`: nowhere. A direct path is one that a pong
    /// has proven, unless the peer has no relay.
    UsePath {
        /// The peer.
        peer: NodePublic,
        /// Where.
        path: Option<Path>,
    },
    /// Begin a handshake: the peer has a path at last, or has restarted.
    HandshakeNow(NodePublic),
    /// A ping by [`super::Paths::ping`] was answered.
    Pong {
        /// The peer.
        peer: NodePublic,
        /// What [`super::Paths::ping`] returned.
        number: u32,
        /// How it was reached.
        via: Path,
        /// The round trip.
        latency: Duration,
    },
    /// Find out the own endpoints, and tell them by [`super::Paths::set_own_endpoints`]: calls wait a second.
    RefreshEndpoints,
    /// Open auxiliary sockets, send a ping by each, and tell by [`super::Paths::handle_sockets_opened`].
    OpenSockets(SocketsToOpen),
    /// Keep this auxiliary socket, and close all others of its number.
    RetainSocket(AuxiliarySocket),
    /// Close the auxiliary sockets of that number.
    CloseSockets(u32),
}

/// AuxiliarySocket sockets to open, and the ping that each sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketsToOpen {
    /// The peer.
    pub peer: NodePublic,
    /// The key of its disco messages.
    pub disco: DiscoPublic,
    /// The number of the sockets.
    pub number: u32,
    /// Where the ping goes.
    pub to: SocketAddr,
    /// How many sockets.
    pub count: u16,
    /// How many routers the ping may pass.
    pub hops: u8,
    /// The ping's number.
    pub tx: TxId,
}
