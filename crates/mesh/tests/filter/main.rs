//! Compares the filter with Tailscale's own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

#[allow(dead_code, reason = "shared with packet's tests, which need more of it")]
#[path = "../../../packet/tests/filter/any.rs"]
mod any;
#[allow(dead_code, reason = "shared with packet's tests, which need more of it")]
#[path = "../../../packet/tests/filter/bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "shared with packet's tests, which need more of it")]
#[path = "../../../packet/tests/filter/process.rs"]
mod process;
mod tailscale;
