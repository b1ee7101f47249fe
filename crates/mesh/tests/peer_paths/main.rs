//! Paths between two hosts, in networks on virtual time.
#![allow(clippy::unwrap_used, missing_docs)]

mod any;
mod birthday;
mod hostile;
mod life;
mod pairs;
mod peer_relay;
mod plan;
mod start;
mod stock;
mod world;
