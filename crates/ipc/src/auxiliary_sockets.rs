//! Auxiliary sockets of the data plane, for birthday probing (`peer_paths` of the crate `mesh`).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tailnet::keys::NodePublic;

/// One of a group of auxiliary sockets, which were opened together for birthday probing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuxiliarySocket {
    /// The number of the group.
    pub number: u32,
    /// The index in the group.
    pub index: u16,
}

/// A request to open auxiliary sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSockets {
    /// The number of the group.
    pub number: u32,
    /// The peer.
    pub peer: NodePublic,
    /// The peer's endpoint. Datagrams from other sources are ignored.
    pub to: SocketAddr,
    /// The number of sockets.
    pub count: u16,
    /// The TTL of the datagram.
    pub hops: u8,
    /// The datagram that each socket sends.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}
