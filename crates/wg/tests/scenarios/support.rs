//! The harness.

mod forge;
mod host;
mod world;

use std::time::Duration;

pub use forge::{
    LOW_ORDER, Stranger, initiation_by, initiation_with_ephemeral, restamped, stamp, static_static,
    with_macs,
};
pub use host::{Host, allowed, inner, inner_packet, seal_one};
pub use sim::Link;
pub use world::{LINK, Sent, What, World};

/// Index of a host in its world.
pub type Id = usize;

/// Hosts of most scenarios.
pub const A: Id = 0;
pub const B: Id = 1;
pub const C: Id = 2;

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
