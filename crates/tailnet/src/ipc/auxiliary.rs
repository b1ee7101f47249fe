//! The sockets beside the one of the data plane, by which a peer is met by chance ([`crate::paths`]).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::keys::NodePublic;

/// One of the auxiliary sockets, which were opened together to meet a peer by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuxiliarySocket {
    /// The number of all of these.
    pub number: u32,
    /// Which of them.
    pub index: u16,
}

/// AuxiliarySocket sockets to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSockets {
    /// Their number.
    pub number: u32,
    /// The peer.
    pub peer: NodePublic,
    /// Where it is. What comes from elsewhere is not taken.
    pub to: SocketAddr,
    /// How many.
    pub count: u16,
    /// How many routers what is sent may pass.
    pub hops: u8,
    /// What is sent by each.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}
