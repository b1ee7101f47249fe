//! The configuration of a stack, and its counters.

use std::{net::IpAddr, sync::Arc, time::Duration};

pub use crate::tcp::CongestionControl;

/// Reads a monotonic clock.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The configuration of a stack.
#[derive(Clone)]
pub struct Config {
    /// The local addresses. Packets to others are dropped.
    pub addresses: Vec<IpAddr>,
    /// The longest packet, in bytes. At least 1280.
    pub mtu: u16,
    /// Memory limit of all buffers together, in bytes. 1 KiB is reserved for each connection, so
    /// this also limits the number of connections.
    pub memory: usize,
    /// The congestion control of connections.
    pub control: CongestionControl,
    /// Key for unpredictable sequence numbers and ports. It must be random.
    pub secret: u128,
    /// The clock of all timers.
    pub clock: Clock,
}

/// The smallest MTU of a stack, that of IPv6 (RFC 8200 section 5).
pub(super) const MIN_MTU: u16 = 1280;

/// Counters of dropped packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets with overlapping or contradicting fragments.
    pub fragments_overlap: u64,
    /// Packets with a missing fragment that timed out.
    pub fragments_late: u64,
    /// Fragmented packets that were dropped for lack of memory.
    pub fragments_full: u64,
    /// Reassembled packets with a wrong checksum.
    pub fragments_checksum: u64,
    /// Packets to addresses that are not local.
    pub not_ours: u64,
    /// Packets with an invalid header or an unsupported protocol.
    pub malformed: u64,
    /// Segments without a connection. They were answered by a reset.
    pub stray: u64,
    /// Connection requests that exceeded the backlog or the memory.
    pub backlog_full: u64,
    /// Datagrams without a socket, or with a socket that is full or connected to another peer.
    pub datagrams: u64,
    /// Answers (resets, echoes, errors) that did not fit the send queue.
    pub answers: u64,
}
