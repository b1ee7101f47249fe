//! Floor 0: the WireGuard protocol, without I/O, clock or threads.
#![forbid(unsafe_code)]

pub mod config;
mod key;

pub use key::{KeyError, PresharedKey, PrivateKey, PublicKey};
