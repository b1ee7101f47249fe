//! A coordinator and a relay that really speak their protocols, over any stream, and say what a
//! test's script has them say. A provider of identities on loopback.

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod provider;
pub mod relay;
