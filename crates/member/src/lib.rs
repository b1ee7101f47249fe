//! Floor 4: a machine in a tailnet. Its network is found and kept by an agent, which has no key of
//! WireGuard's; its packets are carried by the data plane, which does what the agent says.
//!
//! ```text
//!   agent    speaks to the coordinator, to relays, and to programs of this machine; decides
//!   client   asks a running agent
//!   lock     keys and secrets of tailnet lock, for who asks a running agent
//!   relay_server   a process of its own: passes datagrams on between peers
//!   plane    beside a `Node`: carries out the agent's words, and tells it what happens
//! ```
#![forbid(unsafe_code)]
// A program that the agent is a part of needs no socket.
#![cfg_attr(not(feature = "local-api"), allow(dead_code))]

pub mod agent;
pub mod client;
pub mod plane;
pub mod relay_server;
pub mod tka;
