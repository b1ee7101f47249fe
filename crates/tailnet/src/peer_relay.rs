//! Peer relays: a node passes the datagrams of two others on, over UDP (tailscale `net/udprelay`).
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
//! All of it that goes by UDP has a header in front ([`Geneve`]), whose number says which two
//! clients it is of. The server opens what binds, and nothing else.

mod geneve;
mod server;

pub use self::{
    geneve::{GENEVE_LEN, Geneve, Protocol, Vni},
    server::{AllocateError, Allocation, ClientInfo, Server, SessionInfo},
};

/// The capability of a peer that may have endpoints of this node's relay (`tailcfg.go`).
pub const MAY_ALLOCATE: &str = "tailscale.com/cap/relay";
/// The capability of a peer whose relay may be asked by this node for endpoints.
pub const IS_RELAY: &str = "tailscale.com/cap/relay-target";
/// What forbids a node to relay for others.
pub const NO_SERVER: &str = "disable-relay-server";
/// What forbids a node to use relays of others.
pub const NO_CLIENT: &str = "disable-relay-client";
/// The first version of the protocol of which all nodes know peer relays.
pub const MIN_CAPABILITY_VERSION: u32 = 121;
