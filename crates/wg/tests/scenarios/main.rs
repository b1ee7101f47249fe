//! The protocol's behaviour as scenarios: hosts that run it on virtual time,
//! with links between them that delay, lose, reorder and duplicate.
//!
//! ```text
//!   world.send(A, B) -> Host A (route, reserve, seal | stage) -> link
//!        -> Host B (session, open, accept, received) -> world.received(B)
//!   world.run(..)    advances time from event to event: arrivals and timers
//! ```
//!
//! Every test is seeded; none sleeps or reads a clock.
#![allow(clippy::unwrap_used, missing_docs)]

mod chaos;
mod commands;
mod configuration;
mod cookies;
mod events;
mod forgery;
mod handshake;
mod interop;
mod keepalive;
mod limits;
mod on_demand;
mod path_mtu;
mod post_quantum;
mod rekey;
mod replay;
mod retransmission;
mod roaming;
mod roaming_off;
mod scale;
mod support;
mod together;
