//! Messages between the agent and the data plane.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tailnet::{geneve::Vni, keys::NodePublic, tsmp::Token};

use crate::{
    auxiliary_sockets::{AuxiliarySocket, OpenSockets},
    filter_policy::FilterPolicy,
};

/// A message from the agent to the data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToDataPlane {
    /// An agent started. Answered by [`ToAgent::Hello`].
    Hello,
    /// New or changed peers, and keys of removed peers.
    Peers {
        /// Whether all other peers are removed, too.
        complete: bool,
        /// New or changed.
        changed: Vec<Peer>,
        /// Gone.
        removed: Vec<NodePublic>,
    },
    /// The path to a peer.
    Path {
        /// The peer.
        peer: NodePublic,
        /// The path.
        path: Path,
    },
    /// Starts a handshake with a peer.
    Handshake(NodePublic),
    /// Disco and STUN datagrams for the UDP socket.
    Datagrams(Vec<Outgoing>),
    /// Datagrams of birthday probing for the UDP socket. They are counted.
    BirthdayProbes(Vec<Outgoing>),
    /// Opens auxiliary sockets, and sends a datagram from each. Answered by
    /// [`ToAgent::SocketsOpened`].
    OpenSockets(Box<OpenSockets>),
    /// Retains this auxiliary socket, and closes all others of its group.
    RetainSocket(AuxiliarySocket),
    /// Closes all sockets of the group with this number.
    CloseSockets(u32),
    /// Datagrams that were received from a relay.
    Relayed(Vec<Relayed>),
    /// The filter policy for packets from peers.
    Filter(FilterPolicy),
    /// Seals a login to a relay with the node key. Answered by [`ToAgent::Login`].
    Login {
        /// The ID of the request.
        id: u32,
        /// The relay's key.
        server: [u8; 32],
    },
    /// Creates a candidate for a new node key. Answered by [`ToAgent::Candidate`].
    MakeCandidate,
    /// Replaces the node key by the candidate.
    UseCandidate(NodePublic),
    /// Removes the node key and all peers: this machine left the network.
    Reset,
    /// Requests the state of all peers.
    Report,
    /// The UDP port; 0 for any.
    Port(u16),
    /// The addresses and names of a node without an interface.
    Identity(Identity),
    /// Pings a node through the tunnel. Its answer is sent as [`ToAgent::TunnelPong`].
    TunnelPing(TunnelPing),
}

/// A ping through the tunnel ([`tailnet::tsmp`]), or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelPing {
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The data that the answer returns.
    pub token: Token,
}

/// The addresses and names of a node without an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The node's own addresses.
    pub addresses: Vec<IpAddr>,
    /// Names and their addresses.
    pub names: Vec<(String, Vec<IpAddr>)>,
    /// Search domains. All names below them are in `names`.
    pub search: Vec<String>,
}

/// A message from the data plane to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The answer to [`ToDataPlane::Hello`].
    Hello {
        /// The public node key.
        node_key: NodePublic,
        /// The UDP port.
        port: u16,
        /// The interface's name.
        interface: String,
        /// The interface's index; 0 without an interface.
        index: u32,
    },
    /// Received UDP datagrams that are not WireGuard messages.
    Datagrams(Vec<Incoming>),
    /// Datagrams to a peer through a relay.
    ToRelay {
        /// The relay's number.
        region: u16,
        /// The peer.
        to: NodePublic,
        /// The concatenated datagrams.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// The length of each datagram except the last.
        segment: u32,
    },
    /// An event of a peer.
    Event(PeerEvent),
    /// The peers that sent or received something since the last message.
    Activity(Vec<Activity>),
    /// The answer to [`ToDataPlane::Login`].
    Login {
        /// The ID of the request.
        id: u32,
        /// The contents of the login frame.
        #[serde(with = "serde_bytes")]
        sealed: Vec<u8>,
    },
    /// The answer to [`ToDataPlane::MakeCandidate`].
    Candidate(NodePublic),
    /// The machine's links, addresses or routes changed.
    NetworkChanged,
    /// The UDP port.
    Port(u16),
    /// The answer to a [`ToDataPlane::TunnelPing`].
    TunnelPong(TunnelPing),
    /// The answer to [`ToDataPlane::OpenSockets`].
    SocketsOpened {
        /// The number of the group.
        number: u32,
        /// The number of open sockets.
        count: u16,
    },
}

/// A WireGuard peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The peer's key.
    pub key: NodePublic,
    /// The allowed IPs.
    pub allowed_ips: Box<[IpNet]>,
    /// Seconds between keepalives; 0 to disable them.
    pub keepalive: u16,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Path {
    /// To the peer's UDP address.
    Direct(SocketAddr),
    /// Through a peer relay over UDP ([`tailnet::geneve`]).
    PeerRelay {
        /// The relay's address.
        at: SocketAddr,
        /// The relay's endpoint.
        vni: Vni,
    },
    /// To the peer's UDP address from an auxiliary socket.
    Auxiliary {
        /// The address.
        at: SocketAddr,
        /// The number of the socket's group.
        number: u32,
    },
    /// Through the DERP relay of a region.
    Relay(u16),
}

/// An address of this machine on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAddress {
    /// The address.
    pub addr: IpAddr,
    /// The interface's index.
    pub interface: u32,
}

/// A datagram for the UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The destination.
    pub to: SocketAddr,
    /// The source; `None` lets the routing table decide.
    pub source: Option<LocalAddress>,
    /// The TTL or hop limit; `None` for the default.
    pub hops: Option<u8>,
    /// The auxiliary socket to send from; `None` for the main socket.
    pub by: Option<AuxiliarySocket>,
    /// The payload.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl Outgoing {
    /// Creates a datagram. The routing table decides its source address.
    pub fn new(to: SocketAddr, bytes: Vec<u8>) -> Self {
        Self { to, source: None, hops: None, by: None, bytes }
    }
}

/// A datagram from the UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    /// The source.
    pub from: SocketAddr,
    /// The destination address and the interface.
    pub local: Option<LocalAddress>,
    /// The time of arrival on `CLOCK_BOOTTIME`.
    pub at: Duration,
    /// The auxiliary socket that received it; `None` for the main socket.
    pub to: Option<AuxiliarySocket>,
    /// The payload.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Datagrams from a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayed {
    /// The relay's number.
    pub region: u16,
    /// The sender.
    pub from: NodePublic,
    /// The concatenated datagrams.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The length of each datagram except the last.
    pub segment: u32,
}

/// An event of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerEvent {
    /// A handshake completed.
    HandshakeDone(NodePublic),
    /// The source of authentic packets changed.
    NewPath {
        /// The peer.
        peer: NodePublic,
        /// The new path.
        from: Path,
    },
    /// Packets were sent, and no authentic packet was received for a while.
    Stale(NodePublic),
    /// Packets wait for a session, or the session is being renewed.
    SessionNeeded(NodePublic),
}

/// The traffic of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The peer.
    pub peer: NodePublic,
    /// The total of received bytes.
    pub received: u64,
    /// The total of sent bytes.
    pub sent: u64,
    /// The time of the last handshake, since 1970.
    pub last_handshake: Option<Duration>,
    /// The path of the last received packet.
    pub received_from: Option<Path>,
    /// The path's MTU, if it is known to be smaller than that of the interface.
    pub path_mtu: Option<u16>,
    /// The time when the post-quantum secret of the session was agreed on, since 1970; `None` for a
    /// session without one.
    pub post_quantum: Option<Duration>,
}
