//! Scenarios of the protocol's behaviour: hosts run it on virtual time, connected by links that
//! delay, lose, reorder and duplicate.
//!
//! ```text
//!   world.send(A, B) -> Host A (route, reserve, seal | stage) -> link
//!        -> Host B (session, open, accept, handle_received) -> world.received(B)
//!   world.run(..)    advances the time from event to event: arrivals and timers
//! ```
//!
//! Every test is seeded; none sleeps or reads a clock.
#![allow(clippy::unwrap_used, missing_docs)]

mod batches;
mod chaos;
mod commands;
mod configuration;
mod cookies;
mod events;
mod fixed_endpoints;
mod forgery;
mod handshake;
mod interop;
mod keepalive;
mod limits;
mod path_mtu;
mod peer_lookup;
mod post_quantum;
mod rekey;
mod replay;
mod retransmission;
mod roaming;
mod scale;
mod support;
