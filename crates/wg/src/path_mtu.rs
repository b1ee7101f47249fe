//! How much a path carries whole: an addition to WireGuard (docs/decisions/0006), all of which is
//! in this folder. Where nobody switches it on, nothing is asked, but questions are answered.
//!
//! ```text
//!   data path  (data_path)   limit   <----+        sent long, questions and answers -+
//!                                         |                                          v
//!                                      PeerPath, one in each peer (shared)
//!                                         |                                          |
//!   control    (timers)      deadline, handle_timeout, handle_session -- PathSearch <+
//!                                                                             |
//!                                                                          Search (search)
//!   the wire   (probe)       Probe: a question of some length, and its answer
//! ```

mod constants;
mod data_path;
mod probe;
mod search;
mod shared;
mod timers;

pub(crate) use data_path::sent_long;
pub use probe::{PROBE_FIRST_BYTE, PROBE_LEN, Probe, ProbeKind};
pub(crate) use shared::PeerPath;
pub(crate) use timers::{PathSearch, Reach};

/// What may be sent to a peer, in bytes of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLimit {
    /// The longest that arrives whole.
    pub bytes: u16,
    /// Whether the search is over; else the path may well carry more.
    pub settled: bool,
}
