//! The way by which a request arrived.

use std::net::SocketAddr;

/// How a request arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// By the local socket, from a process of this user.
    Socket { user: Option<u32> },
    /// Over the network, from this address.
    Remote(SocketAddr),
}
