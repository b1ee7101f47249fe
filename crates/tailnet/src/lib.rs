//! Floor 0: protocols and decisions of a tailnet node, as encodings and state machines. Time and
//! randomness are arguments. Nothing here opens a socket or a file.
#![forbid(unsafe_code)]

pub mod control;
pub mod derp;
pub mod desired_host;
pub mod disco;
pub mod dns;
pub mod filter;
pub mod ipc;
mod json;
pub mod keys;
pub mod local;
pub mod map;
pub mod messages;
pub mod nat64;
pub mod netcheck;
pub mod paths;
pub mod peer_relay;
pub mod portmap;
pub mod prefs;
pub mod scope;
pub mod settings;
pub mod stun;
pub mod tka;
pub mod tsmp;
