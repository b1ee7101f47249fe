//! Floor 0: the protocols of a tailnet, as both ends read and write them. A node and a coordinator
//! use this crate. Time and randomness are arguments. Nothing here opens a socket or a file.
//!
//! ```text
//!   node <── ts2021: requests, map_messages, tka ──> coordinator
//!   node <── derp, stun ───────────────────────────> relay
//!   node <── disco, geneve, tsmp ──────────────────> node
//! ```
//!
//! The decisions of a node are in the crate `mesh`, those of a coordinator in `coordinator`.
#![forbid(unsafe_code)]

pub mod derp;
pub mod disco;
pub mod geneve;
pub mod keys;
pub mod map_messages;
pub mod nil;
pub mod raw_json;
pub mod stun;
pub mod tka;
pub mod ts2021;
pub mod tsmp;
