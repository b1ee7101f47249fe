//! Paths between two hosts, in networks on virtual time.
#![allow(clippy::unwrap_used, missing_docs)]

mod any;
mod chance;
mod hostile;
mod life;
mod pairs;
mod passed;
mod plan;
mod start;
mod stock;
mod world;
