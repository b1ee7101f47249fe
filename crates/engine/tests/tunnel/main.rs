//! Whole data planes in memory, stepped in one thread on virtual time.
//!
//! ```text
//!   Port A - Outbound/Inbound/SlowPath A - Network - ... B - Port B
//! ```
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod bad_input;
mod congestion;
mod control_datagrams;
mod delivery;
mod failures;
mod filter;
mod lookups;
mod messages;
mod observer;
mod overload;
mod path_mtu;
mod peer_sockets;
mod prefix_table;
mod relay;
mod support;
