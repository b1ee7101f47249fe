//! Path MTU discovery by probes: an addition to WireGuard (docs/decisions/0006). Unless it is enabled,
//! no probes are sent, but received probes are answered.
//!
//! ```text
//!   device/path_mtu          limit   <----+        long data, probes, replies -+
//!                                         |                                    v
//!                                      PeerPath, one in each peer (shared)
//!                                         |                                    |
//!   control/path_search         deadline -+- PathSearch::handle_timeout, ... <-+
//!                                                       |
//!                                                    Search (search)
//!   the wire   (probe)       Probe: a request of some length, and its reply
//! ```

pub(crate) mod constants;
mod probe;
pub(crate) mod search;
pub(crate) mod shared;

pub use probe::{PROBE_FIRST_BYTE, PROBE_LEN, Probe, ProbeKind};
pub(crate) use shared::PeerPath;

/// The path MTU of a peer, as the length of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLimit {
    /// The longest packet that arrives whole, in bytes.
    pub bytes: u16,
    /// Whether the search has ended. Otherwise the path may carry longer packets.
    pub settled: bool,
}
