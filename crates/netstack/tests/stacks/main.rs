//! Two stacks, connected by a wire in memory. Like an engine, the wire takes batches, splits
//! super-packets into segments, and delivers them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod datagrams;
mod streams;
mod wire;
