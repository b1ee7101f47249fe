//! Disco: the messages by which two nodes find a direct path (tailscale `disco/disco.go`).
//!
//! ```text
//!   magic (6)  sender's disco key (32)  nonce (24)  NaCl box:  type (1)  version (1)  message
//! ```

mod birthday;
mod codec;
mod envelope;
mod peer_relay;

use std::{fmt, net::SocketAddr};

pub use self::{
    birthday::{BirthdayMessage, BirthdayStep},
    envelope::{Disco, NONCE_LEN, sender},
    peer_relay::{AllocateRequest, Bind, CHALLENGE_LEN, RelayEndpoint},
};
use crate::keys::NodePublic;

/// What a disco datagram begins with.
pub const MAGIC: [u8; 6] = *b"TS\xf0\x9f\x92\xac";
/// How many addresses of a call are read. A machine with more is not better reached by them.
pub const MAX_ENDPOINTS: usize = 256;

/// What a disco message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for a [`Message::Pong`], and so tries a path.
    Ping {
        /// Chosen by the sender, returned by the pong.
        tx: TxId,
        /// The sender's node key, where it says it.
        node_key: Option<NodePublic>,
        /// Bytes of padding behind the message, which try the path's MTU.
        padding: usize,
    },
    /// Answers a ping.
    Pong {
        /// That of the ping.
        tx: TxId,
        /// Where the ping came from, as its receiver saw it.
        source: SocketAddr,
    },
    /// Asks the receiver to ping these addresses at once. Goes through relays alone.
    CallMeMaybe {
        /// Where the sender may be reached.
        endpoints: Vec<SocketAddr>,
    },
    /// Begins to bind the sender's address to an endpoint of a peer relay ([`crate::peer_relay`]).
    Bind(Bind),
    /// A peer relay's answer to that.
    BindChallenge(Bind),
    /// Returns the challenge, which binds.
    BindAnswer(Bind),
    /// Asks the receiver to bind to this endpoint. Goes through DERP alone.
    CallMeMaybeVia(Box<RelayEndpoint>),
    /// Asks a peer relay for an endpoint.
    AllocateRequest(AllocateRequest),
    /// The answer to that.
    AllocateResponse {
        /// That of the request.
        generation: u32,
        /// What was made, or was there.
        endpoint: Box<RelayEndpoint>,
    },
    /// Offers to take bundles from the relay that this comes by ([`crate::derp::Bundles`]). Of
    /// linerate alone: stock nodes pass over types that they do not know.
    BundleOffer,
    /// Has two nodes meet by chance. Of linerate alone, as the offer is.
    Birthday(BirthdayMessage),
}

/// The number of a ping.
pub type TxId = [u8; 12];

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoError {
    /// It does not begin as a disco datagram does.
    NotDisco,
    /// It was not sealed by its sender for this key.
    Forged,
    /// Its sender sealed what is no message of its type.
    Malformed,
    /// It is of a type that is not spoken.
    UnknownType(u8),
}

impl fmt::Display for DiscoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDisco => f.write_str("not a disco datagram"),
            Self::Forged => {
                f.write_str("a disco datagram that its sender did not seal for this node")
            }
            Self::Malformed => f.write_str("a malformed disco message"),
            Self::UnknownType(number) => write!(f, "a disco message of the type {number}"),
        }
    }
}

impl std::error::Error for DiscoError {}
