//! Compares the filter with a naive implementation of its semantics. It walks over every rule and
//! caches nothing except the flows that the host opened.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod any;
mod bytes;
mod judge;
mod oracle;
mod process;
mod semantics;
mod tailscale;
