//! Peer relays: a node relays the datagrams of two others over UDP (tailscale `net/udprelay`).
//!
//! ```text
//!   client A                        server                        client B
//!      | -- AllocateRequest (DERP) --> |                              |
//!      | <- AllocateResponse (DERP) -- |                              |
//!      | ------------- CallMeMaybeVia (DERP) -----------------------> |
//!      | -- Bind --------------------> | <-------------------- Bind - |
//!      | <- BindChallenge ------------ | - BindChallenge -----------> |
//!      | -- BindAnswer --------------> | <-------------- BindAnswer - |
//!      | == pings, then WireGuard ===> | ===========================> |
//! ```
//!
//! Each UDP datagram starts with a header ([`tailnet::geneve`]), with a number that identifies the
//! pair of clients. The server opens only the messages of the binding handshake.

mod endpoints;

pub use self::endpoints::{ClientInfo, Server, SessionInfo};

/// The capability of a peer that may allocate endpoints at this node's relay (`tailcfg.go`).
pub const MAY_ALLOCATE: &str = "tailscale.com/cap/relay";
/// The capability of peers that provide this node their relay.
pub const IS_RELAY: &str = "tailscale.com/cap/relay-target";
/// The node attribute that disables this node's relay.
pub const NO_SERVER: &str = "disable-relay-server";
/// The node attribute that disables the use of peer relays.
pub const NO_CLIENT: &str = "disable-relay-client";
/// The minimum capability version of nodes that support peer relays.
pub const MIN_CAPABILITY_VERSION: u32 = 121;
