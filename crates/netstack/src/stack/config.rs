//! What a stack is made with, and what it counts.

use std::{net::IpAddr, sync::Arc, time::Duration};

pub use crate::tcp::CongestionControl;

/// Reads a clock that never steps back.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What a stack is made with.
#[derive(Clone)]
pub struct Config {
    /// Its own addresses. Packets to others are dropped.
    pub addresses: Vec<IpAddr>,
    /// The longest packet, in bytes; at least 1280.
    pub mtu: u16,
    /// What all buffers together may hold, in bytes. Each connection has 1 KiB of it set
    /// aside, so this also bounds how many connections there can be.
    pub memory: usize,
    /// How connections find out how much their paths carry.
    pub control: CongestionControl,
    /// Makes sequence numbers and ports hard to guess: from a good source of
    /// randomness.
    pub secret: u128,
    /// The clock.
    pub clock: Clock,
}

/// The least MTU of a stack: IPv6's (RFC 8200 section 5).
pub(super) const MIN_MTU: u16 = 1280;

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of which fragments overlapped, or contradicted each other.
    pub fragments_overlap: u64,
    /// Packets of which a fragment was missing when they timed out.
    pub fragments_late: u64,
    /// Packets with fragments that found no room, or that made room for others.
    pub fragments_full: u64,
    /// Reassembled packets with a wrong checksum.
    pub fragments_checksum: u64,
    /// Packets to addresses that are not ours.
    pub not_ours: u64,
    /// Packets whose headers cannot be, or of protocols that are not spoken.
    pub malformed: u64,
    /// Segments of no connection; they were answered by a reset.
    pub stray: u64,
    /// Requests for a connection that found no place, or no memory.
    pub backlog_full: u64,
    /// Datagrams that found their socket full, connected to somebody else, or none.
    pub datagrams: u64,
    /// Answers (resets, echoes, errors) that found no room.
    pub answers: u64,
}
