//! Path MTU discovery by probes: an addition to WireGuard (docs/decisions/0006), contained in this
//! folder. Unless it is enabled, no probes are sent, but received probes are answered.
//!
//! ```text
//!   data path  (data_path)   limit   <----+        long data, probes, replies -+
//!                                         |                                    v
//!                                      PeerPath, one in each peer (shared)
//!                                         |                                    |
//!   control    (timers)         deadline -+- PathSearch::handle_timeout, ... <-+
//!                                                       |
//!                                                    Search (search)
//!   the wire   (probe)       Probe: a request of some length, and its reply
//! ```

mod constants;
mod data_path;
mod probe;
mod search;
mod shared;
mod timers;

pub(crate) use data_path::note_long_data_sent;
pub use probe::{PROBE_FIRST_BYTE, PROBE_LEN, Probe, ProbeKind};
pub(crate) use shared::PeerPath;
pub(crate) use timers::{PathSearch, SearchLimit};

/// The path MTU of a peer, as the length of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLimit {
    /// The longest packet that arrives whole, in bytes.
    pub bytes: u16,
    /// Whether the search has ended. Otherwise the path may carry longer packets.
    pub settled: bool,
}
