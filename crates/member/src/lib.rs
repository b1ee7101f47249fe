//! Floor 4: a machine in a tailnet. An agent without WireGuard keys joins and follows the
//! network. The data plane transports the packets and carries out the agent's commands.
//!
//! ```text
//!   agent         exchanges messages with the coordinator, relays and programs; decides
//!   client        sends requests to a running agent
//!   tka           parses keys and secrets of tailnet lock for such requests
//!   relay_server  a separate process that relays datagrams between peers
//!   plane         runs with a `Node`: carries out the agent's commands and reports events
//! ```
#![forbid(unsafe_code)]
// A program that contains the agent works without a socket.
#![cfg_attr(not(feature = "local-api"), allow(dead_code))]

pub mod agent;
pub mod client;
pub mod data_plane;
pub mod relay_server;
pub mod tka;
