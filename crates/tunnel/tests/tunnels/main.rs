//! Two tunnels in one process over loopback, without privileges.
//!
//! ```text
//!   Tunnel a  10.7.0.1  fd07::1                  Tunnel b  10.7.0.2  fd07::2
//!      engine ---- UDP socket -- 127.0.0.1 -- UDP socket ---- engine
//! ```
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

mod block_on;
mod configuration;
mod datagrams;
mod http;
mod names;
mod shutdown;
mod streams;
mod tunnel_pair;
