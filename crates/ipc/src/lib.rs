//! Floor 0: the messages between the processes of a node of a tailnet, and their encoding. Nothing
//! here opens a socket or a file.
//!
//! ```text
//!   agent: control, relays, paths, names          steward: the host, as root
//!     |  ^   |  ^                                   ^  |
//!     |  |   |  `------------ FromSteward ----------|--'
//!     |  |   `--------------- ToSteward ------------'
//!     |  |
//!     |  `-- ToAgent: datagrams, packets for relays, events, activity
//!     `----- ToDataPlane: peers, paths, filter, datagrams
//!     v  |
//!   data plane: keys, sessions, TUN, UDP socket
//! ```
//!
//! Each connection is a socket that preserves packet boundaries. A message is sent in one or more
//! parts: a byte of flags, and a piece of its `postcard` encoding. Otherwise the data plane parses
//! only headers and the short messages of [`tailnet::tsmp`]. A new agent starts with
//! [`ToDataPlane::Hello`]. Its first part discards an incomplete message of the previous agent.
#![forbid(unsafe_code)]

mod auxiliary_sockets;
pub mod relay_process;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use packet::filter::{AddressRange, Destination, Policy, Rule};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tailnet::{geneve::Vni, keys::NodePublic, tsmp::Token};

pub use self::auxiliary_sockets::{AuxiliarySocket, OpenSockets};

/// The longest part with its flags: less than half of the default buffer of a Unix socket.
pub const PART: usize = 64 << 10;
/// The longest message, in bytes: many times the peers of the largest network.
pub const LONGEST: usize = 64 << 20;

const FIRST: u8 = 1;
const LAST: u8 = 2;

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

/// A [`Policy`] for serialization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterPolicy {
    local: Vec<(IpAddr, IpAddr)>,
    rules: Vec<FilterRule>,
    open_protocols: Vec<u8>,
    shields_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FilterRule {
    protocols: Vec<u8>,
    sources: Vec<(IpAddr, IpAddr)>,
    destinations: Vec<(IpAddr, IpAddr, u16, u16)>,
}

/// The desired state of the host around the interface. It is always complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredHost {
    /// The interface's addresses.
    pub addresses: Vec<IpNet>,
    /// The networks that are routed to the interface.
    pub routes: Vec<IpNet>,
    /// Whether all other traffic goes to an exit node.
    pub exit: bool,
    /// Whether local networks stay reachable while an exit node is in use.
    pub local_networks: bool,
    /// The networks that peers may reach through this machine.
    pub offered: Vec<IpNet>,
    /// Whether packets of peers get this machine's address.
    pub masquerade: bool,
    /// The DNS settings; `None` leaves them unchanged.
    pub names: Option<DesiredDns>,
    /// The UDP port of the peer relay; 0 for any.
    pub relay_server: Option<u16>,
}

/// The desired DNS settings of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredDns {
    /// The resolvers.
    pub servers: Vec<IpAddr>,
    /// The search domains.
    pub search: Vec<String>,
    /// The domains for which the resolvers are used; empty for all names.
    pub domains: Vec<String>,
}

/// A message from the agent to the steward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSteward {
    /// The desired state of the host.
    Host(DesiredHost),
}

/// A message from the steward to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSteward {
    /// A desired state was applied.
    Done {
        /// A line for each part that failed.
        problems: Vec<String>,
        /// The resolvers that the host had before.
        servers: Vec<IpAddr>,
    },
    /// The node goes down: the agent must release its resources elsewhere, and exit.
    End,
}

impl FromSteward {
    /// An empty result.
    pub fn nothing() -> Self {
        Self::Done { problems: Vec::new(), servers: Vec::new() }
    }
}

/// The reason why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpcError {
    /// A part is empty, too long, or does not belong to a message.
    BadPart,
    /// The message exceeds the limit.
    TooLong,
    /// The message cannot be decoded.
    BadMessage,
}

impl std::fmt::Display for IpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BadPart => "a part without a message",
            Self::TooLong => "a message that is too long",
            Self::BadMessage => "a message that cannot be decoded",
        })
    }
}

impl std::error::Error for IpcError {}

/// Passes the parts of a message to `part`, in order.
///
/// # Errors
/// The error of `part`.
pub fn write<M: Serialize, E>(
    message: &M,
    mut part: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let text = postcard::to_stdvec(message).expect("memory is all that it takes");
    let pieces = text.chunks(PART - 1);
    let last = pieces.len().saturating_sub(1);
    let mut buffer = Vec::with_capacity(PART.min(text.len() + 1));
    for (number, piece) in pieces.enumerate() {
        buffer.clear();
        let is = |end, flag| if number == end { flag } else { 0 };
        buffer.push(is(0, FIRST) | is(last, LAST));
        buffer.extend_from_slice(piece);
        part(&buffer)?;
    }
    Ok(())
}

/// Reassembles messages from their parts.
#[derive(Debug, Default)]
pub struct Reader {
    text: Vec<u8>,
    /// Whether the first part was received.
    began: bool,
}

impl Reader {
    /// Adds a part. Returns the message that it completes.
    ///
    /// # Errors
    /// The part does not belong to a message, or the message cannot be decoded. The reader
    /// continues with the next first part.
    pub fn handle_part<M: DeserializeOwned>(&mut self, part: &[u8]) -> Result<Option<M>, IpcError> {
        let (&flags, piece) = part.split_first().ok_or(IpcError::BadPart)?;
        if flags & !(FIRST | LAST) != 0 || part.len() > PART {
            return Err(IpcError::BadPart);
        }
        if flags & FIRST != 0 {
            self.text.clear();
            self.began = true;
        }
        if !self.began {
            return Err(IpcError::BadPart);
        }
        if flags == FIRST | LAST {
            self.began = false;
            return read(piece).map(Some);
        }
        if self.text.len() + piece.len() > LONGEST {
            *self = Self::default();
            return Err(IpcError::TooLong);
        }
        self.text.extend_from_slice(piece);
        if flags & LAST == 0 {
            return Ok(None);
        }
        self.began = false;
        read(&std::mem::take(&mut self.text)).map(Some)
    }
}

fn read<M: DeserializeOwned>(text: &[u8]) -> Result<M, IpcError> {
    match postcard::take_from_bytes(text) {
        Ok((message, [])) => Ok(message),
        _ => Err(IpcError::BadMessage),
    }
}

impl From<&Policy> for FilterPolicy {
    fn from(policy: &Policy) -> Self {
        let pair = |range: &AddressRange| (range.first(), range.last());
        let rule = |rule: &Rule| FilterRule {
            protocols: rule.protocols.clone(),
            sources: rule.sources.iter().map(pair).collect(),
            destinations: rule
                .destinations
                .iter()
                .map(|to| {
                    let (first, last) = pair(&to.addresses);
                    (first, last, *to.ports.start(), *to.ports.end())
                })
                .collect(),
        };
        Self {
            local: policy.local.iter().map(pair).collect(),
            rules: policy.rules.iter().map(rule).collect(),
            open_protocols: policy.open_protocols.clone(),
            shields_up: policy.shields_up,
        }
    }
}

impl From<&FilterPolicy> for Policy {
    /// An invalid range accepts nothing.
    fn from(sent: &FilterPolicy) -> Self {
        let range = |&(first, last): &(IpAddr, IpAddr)| AddressRange::new(first, last);
        let to = |&(first, last, from, to): &(IpAddr, IpAddr, u16, u16)| {
            let addresses = AddressRange::new(first, last)?;
            Some(Destination { addresses, ports: from..=to })
        };
        let rule = |rule: &FilterRule| Rule {
            protocols: rule.protocols.clone(),
            sources: rule.sources.iter().filter_map(range).collect(),
            destinations: rule.destinations.iter().filter_map(to).collect(),
        };
        Self {
            local: sent.local.iter().filter_map(range).collect(),
            rules: sent.rules.iter().map(rule).collect(),
            open_protocols: sent.open_protocols.clone(),
            shields_up: sent.shields_up,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(message: &impl Serialize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let Ok(()) = write(message, |part| {
            parts.push(part.to_vec());
            Ok::<_, std::convert::Infallible>(())
        });
        parts
    }

    fn relayed(len: usize) -> ToDataPlane {
        let from = NodePublic([7; 32]);
        ToDataPlane::Relayed(vec![Relayed { region: 1, from, bytes: vec![9; len], segment: 9 }])
    }

    #[test]
    fn long_message_is_split_and_reassembled() {
        for len in [0, 1, PART - 60, PART, 3 * PART] {
            let (sent, mut reader) = (relayed(len), Reader::default());
            let parts = parts(&sent);
            assert!(parts.iter().all(|part| part.len() <= PART));
            let (last, first) = parts.split_last().unwrap();
            for part in first {
                assert_eq!(reader.handle_part::<ToDataPlane>(part), Ok(None));
            }
            assert_eq!(reader.handle_part(last), Ok(Some(sent)));
        }
    }

    #[test]
    fn incomplete_message_of_a_previous_agent_is_discarded() {
        let mut reader = Reader::default();
        let half = parts(&relayed(3 * PART));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[0]), Ok(None));
        let hello = parts(&ToDataPlane::Hello);
        assert_eq!(reader.handle_part(&hello[0]), Ok(Some(ToDataPlane::Hello)));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[1]), Err(IpcError::BadPart));
    }

    #[test]
    fn too_long_message_releases_its_memory() {
        let mut reader = Reader::default();
        let mut part = vec![0; PART];
        part[0] = FIRST;
        assert_eq!(reader.handle_part::<ToDataPlane>(&part), Ok(None));
        part[0] = 0;
        let refused =
            (0..LONGEST / PART + 2).find_map(|_| reader.handle_part::<ToDataPlane>(&part).err());
        assert_eq!(refused, Some(IpcError::TooLong));
        assert_eq!(reader.text.capacity(), 0);
    }

    #[test]
    fn policy_is_unchanged_after_transfer() {
        let net = |text: &str| {
            let net: IpNet = text.parse().unwrap();
            AddressRange::prefix(net.addr(), net.prefix_len()).unwrap()
        };
        let policy = Policy {
            local: vec![net("100.64.0.1/32"), net("fd7a::1/128")],
            rules: vec![Rule {
                protocols: vec![6, 17],
                sources: vec![AddressRange::V4, net("10.0.0.0/8")],
                destinations: vec![Destination { addresses: net("100.64.0.1/32"), ports: 22..=80 }],
            }],
            open_protocols: vec![99],
            shields_up: true,
        };
        let sent = FilterPolicy::from(&policy);
        let mut reader = Reader::default();
        let read = reader.handle_part(&parts(&ToDataPlane::Filter(sent))[0]);
        let Ok(Some(ToDataPlane::Filter(read))) = read else { panic!("{read:?}") };
        assert_eq!(Policy::from(&read), policy);
    }

    proptest! {
        #[test]
        fn garbage_causes_no_panic(
            garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..8),
        ) {
            let mut reader = Reader::default();
            for part in garbage {
                let _ = reader.handle_part::<ToDataPlane>(&part);
                let _ = reader.handle_part::<ToAgent>(&part);
            }
        }
    }
}
