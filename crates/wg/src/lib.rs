//! Floor 0: the WireGuard protocol, without I/O, clock or threads. Time and randomness are
//! parameters.
//!
//! Three parties share a [`Device`]:
//!
//! ```text
//!   outbound   route -> reserve counters -> (seal, send) -> handle_sent      StagedPackets
//!   inbound    session -> (open) -> accept counter -> handle_received
//!   control    handshakes, cookies, timers, configuration             Control
//! ```
//!
//! The data path reads the device, sets marks in it and posts notices. The control half reads both
//! and installs new keypairs.
#![forbid(unsafe_code)]

mod allowed_ips;
pub mod config;
pub mod constants;
mod control;
mod cookie;
mod device;
mod drops;
mod events;
mod index_table;
mod keypair;
mod mark;
pub mod message;
mod path_mtu;
mod peer;
mod post_quantum;
mod ratelimiter;
mod replay;
mod staged;
mod tai64n;
mod time;

pub use allowed_ips::AllowedIps;
pub use control::{AllowedIpMove, CommandError, ConfigError, Control};
pub use crypto::{Crypto, KeyError, PresharedKey, PrivateKey, PublicKey, stack};
pub use device::{
    ControlNotice, Device, HandshakeCounts, KeyUser, OutboundNotice, ReceiveError,
    ReceivedMessages, Reservation, ReserveError, Routes, SentDatagrams, StackWipes,
};
pub use drops::{DropReason, Drops};
pub use events::{Event, Events};
pub use index_table::Session;
pub use keypair::{Keypair, RecvKey, SendKey};
pub use path_mtu::{PROBE_FIRST_BYTE, PROBE_LEN, PathLimit, Probe, ProbeKind};
pub use peer::Peer;
pub use post_quantum::{ExchangeMessage, PostQuantum};
pub use replay::ReplayFilter;
pub use staged::StagedPackets;
pub use time::{Now, Time};
