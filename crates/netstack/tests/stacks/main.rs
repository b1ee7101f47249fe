//! Two stacks, joined by a wire in memory that does what an engine does: takes batches,
//! cuts super-packets into segments, and delivers them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod datagrams;
mod streams;
mod wire;
