//! The line between the two processes of a member, and their messages.
//!
//! ```text
//!   agent: control, relays, paths, names          steward: the host, as root
//!     |  ^                                           ^  |
//!     |  `------------ HostReply -------------------'   |
//!     |  ------------- DesiredHost ---------------------->-'
//!     |
//!     |  ToDataPlane: peers, paths, filter, datagrams
//!     v
//!   data plane: keys, sessions, TUN, UDP socket
//!     |  ToAgent: datagrams, what goes to relays, events, activity
//!     `--> agent
//! ```
//!
//! Each line is a socket that keeps the boundaries of its packets. A message is one or more parts:
//! a byte that says which, and a piece of its `postcard` encoding. Beside this the plane parses
//! headers and the short messages of [`crate::tsmp`]. A new agent begins with [`ToDataPlane::Hello`], which
//! every reader takes for the end of what a former one may have left half said.

mod auxiliary;
pub mod peer_relay;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use packet::filter::{AddressRange, Destination, Policy, Rule};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use self::auxiliary::{AuxiliarySocket, OpenSockets};
use crate::{keys::NodePublic, peer_relay::Vni, tsmp::Token};

/// The most bytes of one part, with its first byte: less than half of what any kernel's default
/// buffer of a Unix socket holds.
pub const PART: usize = 64 << 10;
/// The most bytes of a message: the peers of the largest network, many times over.
pub const LONGEST: usize = 64 << 20;

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// From the agent to the data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToDataPlane {
    /// An agent begins. It is answered by [`ToAgent::Hello`].
    Hello,
    /// Peers that are new or have changed, and keys of those that are gone.
    Peers {
        /// Whether all others are gone, too.
        complete: bool,
        /// New or changed.
        changed: Vec<Peer>,
        /// Gone.
        removed: Vec<NodePublic>,
    },
    /// Where a peer is reached from now on.
    Path {
        /// The peer.
        peer: NodePublic,
        /// Where.
        path: Path,
    },
    /// Begin a handshake with a peer now.
    Handshake(NodePublic),
    /// Datagrams of disco and STUN, for the UDP socket.
    Datagrams(Vec<Outgoing>),
    /// The same that call a peer by chance: they are counted.
    BirthdayProbes(Vec<Outgoing>),
    /// OpenSockets auxiliary sockets, and send this by each. Answered by [`ToAgent::SocketsOpened`].
    OpenSockets(Box<OpenSockets>),
    /// Keep this one of them, and close all others.
    RetainSocket(AuxiliarySocket),
    /// Close all of that number.
    CloseSockets(u32),
    /// Datagrams that came through a relay.
    Relayed(Vec<Relayed>),
    /// Which packets of peers may enter from now on.
    Filter(FilterPolicy),
    /// Log in to a relay: seal what is said there with the node key. Answered by [`ToAgent::Login`].
    Login {
        /// The number of the request.
        id: u32,
        /// The relay's key.
        server: [u8; 32],
    },
    /// Make a candidate for another node key. Answered by [`ToAgent::Candidate`].
    MakeCandidate,
    /// The candidate is the node key from now on.
    UseCandidate(NodePublic),
    /// Be without a node key and without peers: this machine has left.
    Reset,
    /// Tell the state of all peers now.
    Report,
    /// The UDP port to listen on; 0 for any.
    Port(u16),
    /// Who this node is, where there is no interface that could be asked.
    Identity(Identity),
    /// Ping a node through the tunnel. Answered by [`ToAgent::TunnelPong`], if it answers.
    TunnelPing(TunnelPing),
}

/// A ping through the tunnel ([`crate::tsmp`]), or the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelPing {
    /// The address that it comes from.
    pub from: IpAddr,
    /// The address that it goes to.
    pub to: IpAddr,
    /// What goes there and back.
    pub token: Token,
}

/// Who a node without an interface is in the tailnet, and whom it knows by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The node's own addresses.
    pub addresses: Vec<IpAddr>,
    /// Names and their addresses.
    pub names: Vec<(String, Vec<IpAddr>)>,
    /// Domains that are tried behind a short name, and of which all names are here.
    pub search: Vec<String>,
}

/// From the data plane to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The answer to [`ToDataPlane::Hello`].
    Hello {
        /// The public half of the node key.
        node_key: NodePublic,
        /// The UDP port.
        port: u16,
        /// The interface's name.
        interface: String,
        /// The interface's index; 0 if there is none.
        index: u32,
    },
    /// Datagrams that came to the UDP socket and are not WireGuard's.
    Datagrams(Vec<Incoming>),
    /// Datagrams for a peer behind a relay.
    ToRelay {
        /// The relay's number.
        region: u16,
        /// The peer.
        to: NodePublic,
        /// The datagrams, back to back.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// The length of each but the last.
        segment: u32,
    },
    /// Something happened to a peer.
    Event(PeerEvent),
    /// Peers that sent or received something since the last time.
    Activity(Vec<Activity>),
    /// The answer to [`ToDataPlane::Login`].
    Login {
        /// The number of the request.
        id: u32,
        /// The frame's contents: the node key, and what is sealed for the relay.
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
        /// The number of the sockets.
        number: u32,
        /// How many there are.
        count: u16,
    },
}

/// A peer of WireGuard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its key.
    pub key: NodePublic,
    /// The networks that are its own.
    pub allowed_ips: Box<[IpNet]>,
    /// Seconds between keepalives; 0 for none.
    pub keepalive: u16,
}

/// Where a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Path {
    /// At its UDP address.
    Direct(SocketAddr),
    /// By a node that relays over UDP ([`crate::peer_relay`]).
    PeerRelay {
        /// Its address.
        at: SocketAddr,
        /// Which of its endpoints.
        vni: Vni,
    },
    /// At its UDP address, by an auxiliary socket of ours.
    Auxiliary {
        /// The address.
        at: SocketAddr,
        /// The number of the socket, which those had that were opened with it.
        number: u32,
    },
    /// Through a relay's region.
    Relay(u16),
}

/// One of our own addresses, on one interface.
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
    /// Where to.
    pub to: SocketAddr,
    /// Where from; `None` leaves it to the routing table.
    pub source: Option<LocalAddress>,
    /// How many routers it may pass; `None` for as many as any other.
    pub hops: Option<u8>,
    /// By which socket, if it is an auxiliary one.
    pub by: Option<AuxiliarySocket>,
    /// All of it.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl Outgoing {
    /// One from wherever the routing table says.
    pub fn new(to: SocketAddr, bytes: Vec<u8>) -> Self {
        Self { to, source: None, hops: None, by: None, bytes }
    }
}

/// A datagram from the UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    /// Where from.
    pub from: SocketAddr,
    /// The address and interface that it reached.
    pub local: Option<LocalAddress>,
    /// When, on the clock that counts sleep too (`CLOCK_BOOTTIME`).
    pub at: Duration,
    /// Which socket it came to, if it is an auxiliary one.
    pub to: Option<AuxiliarySocket>,
    /// All of it.
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
    /// The datagrams, back to back.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The length of each but the last.
    pub segment: u32,
}

/// Something that happened to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerEvent {
    /// A handshake completed.
    HandshakeDone(NodePublic),
    /// The first authentic packet came from elsewhere than the one before.
    NewPath {
        /// The peer.
        peer: NodePublic,
        /// Where from.
        from: Path,
    },
    /// Something was sent, and nothing authentic came for a while.
    Stale(NodePublic),
    /// Something is to be sent, and there is no session yet, or it is renewed.
    SessionNeeded(NodePublic),
}

/// What a peer sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The peer.
    pub peer: NodePublic,
    /// Bytes received in all.
    pub received: u64,
    /// Bytes sent in all.
    pub sent: u64,
    /// When the last handshake completed, since 1970.
    pub last_handshake: Option<Duration>,
    /// Where it was last heard from.
    pub received_from: Option<Path>,
    /// How long a packet may be on its path, where that is known to be less than usual.
    pub path_mtu: Option<u16>,
    /// When the secret of its session against quantum computers was agreed on, since 1970; `None` for a
    /// session without a secret.
    pub post_quantum: Option<Duration>,
}

/// [`Policy`] as it is sent.
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

/// What the machine is to have around the interface. Each wish is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredHost {
    /// The interface's addresses.
    pub addresses: Vec<IpNet>,
    /// Networks that are reached by the interface.
    pub routes: Vec<IpNet>,
    /// Whether all else goes to an exit node.
    pub exit: bool,
    /// Whether local networks stay reachable beside an exit node.
    pub local_networks: bool,
    /// Networks that peers may reach through this machine.
    pub offered: Vec<IpNet>,
    /// Whether peers appear there under this machine's address.
    pub masquerade: bool,
    /// Names; `None` leaves them as they are.
    pub names: Option<DesiredDns>,
    /// The UDP port at which it relays for peers; 0 for any.
    pub relay_server: Option<u16>,
}

/// How names are to be resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredDns {
    /// Who is asked.
    pub servers: Vec<IpAddr>,
    /// Domains that are tried behind a short name.
    pub search: Vec<String>,
    /// Domains that are asked of these servers alone; empty for all names.
    pub domains: Vec<String>,
}

/// From the agent to the steward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSteward {
    /// What the machine is to have.
    Host(DesiredHost),
}

/// From the steward to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSteward {
    /// A wish was done.
    Done {
        /// What could not be done, a line each.
        problems: Vec<String>,
        /// Who answered questions about names on this machine before.
        servers: Vec<IpAddr>,
    },
    /// The node goes down: the agent is to give back what it has elsewhere, and to end.
    End,
}

impl FromSteward {
    /// There was nothing to do.
    pub fn nothing() -> Self {
        Self::Done { problems: Vec::new(), servers: Vec::new() }
    }
}

/// Why a message could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpcError {
    /// A part is empty, too long, or of no message.
    BadPart,
    /// A message is longer than any may be.
    TooLong,
    /// A message means nothing.
    BadMessage,
}

impl std::fmt::Display for IpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BadPart => "a part that belongs to no message",
            Self::TooLong => "a message that is too long",
            Self::BadMessage => "a message that means nothing",
        })
    }
}

impl std::error::Error for IpcError {}

/// The parts of a message, in their order. `part` sends one.
///
/// # Errors
/// Those of `part`.
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

/// Puts the parts of messages together.
#[derive(Debug, Default)]
pub struct Reader {
    text: Vec<u8>,
    /// Whether a first part was read.
    began: bool,
}

impl Reader {
    /// Takes a part. Returns the message that it completes.
    ///
    /// # Errors
    /// It is of no message, or the message means nothing. The reader goes on with the next first
    /// part.
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
    /// A range that is none accepts nothing.
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
    fn a_long_message_comes_in_parts_and_is_whole_again() {
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
    fn what_a_former_agent_left_half_said_is_forgotten() {
        let mut reader = Reader::default();
        let half = parts(&relayed(3 * PART));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[0]), Ok(None));
        let hello = parts(&ToDataPlane::Hello);
        assert_eq!(reader.handle_part(&hello[0]), Ok(Some(ToDataPlane::Hello)));
        assert_eq!(reader.handle_part::<ToDataPlane>(&half[1]), Err(IpcError::BadPart));
    }

    #[test]
    fn a_message_that_is_too_long_takes_no_memory() {
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
    fn a_policy_is_the_same_at_the_other_end() {
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
        fn garbage_is_an_error_and_no_panic(
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
