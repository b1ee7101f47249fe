//! Disco: the messages by which two nodes find a direct path (tailscale `disco/disco.go`).

use std::net::SocketAddr;

use crate::keys::NodePublic;

/// What a disco datagram begins with.
pub const MAGIC: [u8; 6] = *b"TS\xf0\x9f\x92\xac";

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
}

/// The number of a ping.
pub type TxId = [u8; 12];
