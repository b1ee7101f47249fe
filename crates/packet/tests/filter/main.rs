//! The filter against a naive reading of its semantics: every rule is walked, nothing is
//! remembered but the flows that were begun.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod any;
mod bytes;
mod judge;
mod oracle;
mod process;
mod semantics;
mod tailscale;
