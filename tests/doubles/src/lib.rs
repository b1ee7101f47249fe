//! A coordinator and a relay that really speak their protocols, over any stream, and say what a
//! test's script has them say.

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod relay;
