//! The harness.

mod forge;
mod host;
mod world;

use std::time::Duration;

pub(crate) use forge::{
    LOW_ORDER, Stranger, initiation_by, initiation_with_ephemeral, restamped, stamp, static_static,
    with_macs,
};
pub(crate) use host::{Host, allowed, inner, inner_packet, seal_one};
pub(crate) use sim::Link;
pub(crate) use world::{LINK, Sent, What, World};

/// Index of a host in its world.
pub(crate) type Id = usize;

/// Hosts of most scenarios.
pub(crate) const A: Id = 0;
pub(crate) const B: Id = 1;
pub(crate) const C: Id = 2;

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
