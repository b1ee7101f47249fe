//! A coordinator and a relay with the real protocols over any stream, whose answers come from a
//! test's script; and an identity provider on loopback.

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod provider;
pub mod relay;
