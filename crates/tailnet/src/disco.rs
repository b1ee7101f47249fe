//! Disco: the messages by which two nodes find a direct path (tailscale `disco/disco.go`).
//!
//! ```text
//!   magic (6)  sender's disco key (32)  nonce (24)  NaCl box:  type (1)  version (1)  message
//! ```

mod birthday_message;
mod codec;
mod envelope;
mod relay_messages;

use std::{fmt, net::SocketAddr};

pub use self::{
    birthday_message::{BirthdayMessage, BirthdayStep},
    envelope::{Disco, NONCE_LEN, sender},
    relay_messages::{AllocateRequest, Bind, CHALLENGE_LEN, RelayEndpoint},
};
use crate::keys::NodePublic;

/// The magic number of a disco datagram.
pub const MAGIC: [u8; 6] = *b"TS\xf0\x9f\x92\xac";
/// The number of addresses in a call that are read. More would not help to reach a machine.
pub const MAX_ENDPOINTS: usize = 256;

/// A disco message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Tests a path. The receiver answers with [`Message::Pong`].
    Ping {
        /// Chosen by the sender, returned in the pong.
        tx: TxId,
        /// The sender's node key, if it is in the message.
        node_key: Option<NodePublic>,
        /// The number of padding bytes after the message, which test the path's MTU.
        padding: usize,
    },
    /// Answers a ping.
    Pong {
        /// The ID of the ping.
        tx: TxId,
        /// The source address of the ping, as the receiver observed it.
        source: SocketAddr,
    },
    /// Requests that the receiver pings these addresses at once. Sent only through relays.
    CallMeMaybe {
        /// The endpoints of the sender.
        endpoints: Vec<SocketAddr>,
    },
    /// The first step of binding the sender's address to an endpoint of a peer relay.
    Bind(Bind),
    /// The second step: the peer relay's challenge.
    BindChallenge(Bind),
    /// The last step: returns the challenge.
    BindAnswer(Bind),
    /// Requests that the receiver binds to this endpoint. Sent only through DERP.
    CallMeMaybeVia(Box<RelayEndpoint>),
    /// Requests an endpoint from a peer relay.
    AllocateRequest(AllocateRequest),
    /// The answer to [`Message::AllocateRequest`].
    AllocateResponse {
        /// The number of the request.
        generation: u32,
        /// The new or existing endpoint.
        endpoint: Box<RelayEndpoint>,
    },
    /// Offers to accept bundles through the relay that forwarded this message
    /// ([`crate::derp::Bundles`]). Only linerate uses it. Stock nodes ignore unknown types.
    BundleOffer,
    /// Coordinates birthday probing of two nodes. Only linerate uses it.
    Birthday(BirthdayMessage),
}

/// The ID of a ping.
pub type TxId = [u8; 12];

/// The reason why a datagram is not a disco message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoError {
    /// The magic number is missing.
    NotDisco,
    /// The datagram was not sealed for this key by its sender.
    Forged,
    /// The sealed text is not a message.
    Malformed,
    /// The message type is unknown.
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
            Self::UnknownType(number) => write!(f, "a disco message of the unknown type {number}"),
        }
    }
}

impl std::error::Error for DiscoError {}
