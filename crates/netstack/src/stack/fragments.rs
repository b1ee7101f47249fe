//! Reassembles received fragments (RFC 791 section 3.2, RFC 815, RFC 8200 section 4.5).
//!
//! ```text
//!   fragment ─► Fragments::take ─┬─ Whole, with all data in order
//!                                ├─ Waiting, for 60 s at most
//!                                └─ Dropped: it overlaps (RFC 5722), or memory is full
//! ```
//!
//! The memory of all waiting packets is bounded, in total and for each source. The packet that has
//! waited longest is evicted.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use packet::host_prefix;

use crate::{ip::Fragment, time::Time};

/// Time in which all fragments of a packet must arrive (RFC 1122 section 3.3.2, RFC 8200 section
/// 4.5).
const LIFE: Duration = Duration::from_mins(1);
/// Memory limit of all packets, in bytes, as Linux' `ipfrag_high_thresh`.
const MEMORY: usize = 4 << 20;
/// Memory limit of one source, in bytes.
const SHARE: usize = MEMORY / 4;
/// Overhead of a packet without its fragments, in bytes: its entries in three maps, which are at
/// least half full, and the first allocation of its pieces.
const PACKET: usize = 2 * (size_of::<(Key, Partial)>() + size_of::<(u64, (Time, Key))>())
    + 2 * size_of::<(u64, Key)>()
    + 4 * size_of::<Piece>();
/// Overhead of a source, in bytes: an entry of a map, and the first node of another.
const SOURCE: usize = 2 * size_of::<(IpAddr, Share)>() + NODE * size_of::<(u64, Key)>();
/// Entries of a node of a `BTreeMap`.
const NODE: usize = 11;
/// Overhead of a fragment, in bytes: its entry in the vector, which may be half full, and the
/// allocator's header.
const PIECE: usize = 2 * size_of::<Piece>() + 16;
/// The most fragments of a packet: those of 65,535 bytes at 552 bytes, the smallest path MTU.
const PIECES: usize = 128;

/// Incomplete packets.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    packets: HashMap<Key, Partial>,
    /// All packets, the oldest first, with their timeouts.
    order: BTreeMap<u64, (Time, Key)>,
    sources: HashMap<IpAddr, Share>,
    used: usize,
    /// Number of the next packet.
    next: u64,
}

/// Values that are equal in all fragments of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// For IPv4 only.
    protocol: u8,
}

/// The packets of one source.
#[derive(Debug, Default)]
struct Share {
    used: usize,
    order: BTreeMap<u64, Key>,
}

#[derive(Debug)]
struct Partial {
    number: u64,
    /// In order of their start, without overlap.
    pieces: Vec<Piece>,
    /// Bytes of all pieces.
    len: usize,
    /// Offset of the packet's end, once the last fragment has arrived.
    end: Option<usize>,
    /// The protocol in the first fragment.
    protocol: u8,
    /// Memory of the packet, in bytes.
    used: usize,
    /// Whether the packet was dropped. Its further fragments are dropped, too, and not counted
    /// again.
    is_dropped: bool,
}

#[derive(Debug)]
struct Piece {
    start: usize,
    data: Box<[u8]>,
}

/// Result of [`Fragments::take`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The packet is incomplete.
    Waiting,
    /// The packet's protocol, and all its data after the IP header.
    Whole(u8, Vec<u8>),
    /// The packet is dropped, because fragments overlap.
    Overlap,
}

/// A packet that timed out, with its first fragment.
pub(super) struct Expired {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub first: Box<[u8]>,
}

impl Fragments {
    /// Memory of all packets, in bytes.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// The time at which the oldest packet times out.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.order.first_key_value().map(|(_, (due, _))| *due)
    }

    /// Adds a fragment. Returns the result, and the number of packets dropped for lack of memory.
    pub(super) fn take(&mut self, fragment: &Fragment<'_>, now: Time) -> (Outcome, u64) {
        let key = Key::of(fragment);
        let dropped = self.make_room(key, PIECE + fragment.data.len());
        match self.change(key, now, |partial| partial.take(fragment)) {
            Step::Waiting => (Outcome::Waiting, dropped),
            Step::Overlap => (Outcome::Overlap, dropped),
            Step::TooMany => (Outcome::Waiting, dropped + 1),
            Step::Whole => match self.remove(key) {
                Some(whole) => (Outcome::Whole(whole.protocol, whole.join()), dropped),
                None => (Outcome::Waiting, dropped),
            },
        }
    }

    /// Drops the packet of a fragment for lack of memory. Returns the number of packets dropped.
    pub(super) fn refuse(&mut self, fragment: &Fragment<'_>, now: Time) -> u64 {
        let key = Key::of(fragment);
        let dropped = self.make_room(key, 0);
        dropped + u64::from(self.change(key, now, Partial::drop_data))
    }

    /// Changes a packet, which may be new.
    fn change<T>(&mut self, key: Key, now: Time, change: impl FnOnce(&mut Partial) -> T) -> T {
        let next = self.next;
        let partial = self.packets.entry(key).or_insert_with(|| Partial::new(next));
        let number = partial.number;
        let before = if number == next { 0 } else { partial.used };
        let changed = change(partial);
        let used = partial.used;
        if number == next {
            self.next += 1;
            self.order.insert(number, (now + LIFE, key));
        }
        let share = self.sources.entry(host_prefix(key.source)).or_default();
        if share.order.is_empty() {
            self.used += SOURCE;
        }
        share.order.insert(number, key);
        share.used = share.used + used - before;
        self.used = self.used + used - before;
        changed
    }

    /// Drops the oldest packet if it timed out, and returns its first fragment, if that arrived.
    /// Returns `None` if no packet timed out. Packets that were dropped before are skipped.
    pub(super) fn expire(&mut self, now: Time) -> Option<Option<Expired>> {
        let (key, partial) = loop {
            let (_, &(due, key)) = self.order.first_key_value()?;
            if due > now {
                return None;
            }
            let partial = self.remove(key)?;
            if !partial.is_dropped {
                break (key, partial);
            }
        };
        let first = partial.pieces.into_iter().next().filter(|piece| piece.start == 0);
        let (source, destination) = (key.source, key.destination);
        Some(first.map(|piece| Expired {
            source,
            destination,
            protocol: partial.protocol,
            first: piece.data,
        }))
    }

    /// Drops packets until `cost` bytes of a packet fit. Returns the number of packets that were
    /// not dropped before.
    fn make_room(&mut self, newcomer: Key, cost: usize) -> u64 {
        let mut dropped = 0;
        let source = host_prefix(newcomer.source);
        let packet = if self.packets.contains_key(&newcomer) { 0 } else { PACKET };
        let cost = packet + cost;
        while let Some(share) = self.sources.get(&source)
            && share.used + cost > SHARE
            && let Some((_, &oldest)) = share.order.first_key_value()
        {
            dropped += self.evict(oldest);
        }
        let cost = cost + if self.sources.contains_key(&source) { 0 } else { SOURCE };
        while self.used + cost > MEMORY
            && let Some((_, &(_, oldest))) = self.order.first_key_value()
        {
            dropped += self.evict(oldest);
        }
        dropped
    }

    /// Removes a packet. Returns 1 if it was not dropped before.
    fn evict(&mut self, key: Key) -> u64 {
        self.remove(key).map_or(0, |partial| u64::from(!partial.is_dropped))
    }

    fn remove(&mut self, key: Key) -> Option<Partial> {
        let partial = self.packets.remove(&key)?;
        self.order.remove(&partial.number);
        self.used -= partial.used;
        let source = host_prefix(key.source);
        if let Some(share) = self.sources.get_mut(&source) {
            share.used -= partial.used;
            share.order.remove(&partial.number);
            if share.order.is_empty() {
                self.sources.remove(&source);
                self.used -= SOURCE;
            }
        }
        Some(partial)
    }
}

impl Key {
    fn of(fragment: &Fragment<'_>) -> Self {
        let Fragment { source, destination, id, .. } = *fragment;
        let protocol = if source.is_ipv4() { fragment.protocol } else { 0 };
        Self { source, destination, id, protocol }
    }
}

enum Step {
    Waiting,
    Whole,
    Overlap,
    TooMany,
}

impl Partial {
    fn new(number: u64) -> Self {
        Self {
            number,
            pieces: Vec::new(),
            len: 0,
            end: None,
            protocol: 0,
            used: PACKET,
            is_dropped: false,
        }
    }

    fn take(&mut self, fragment: &Fragment<'_>) -> Step {
        if self.is_dropped {
            return Step::Waiting;
        }
        let Fragment { start, data, is_last, .. } = *fragment;
        let end = start + data.len();
        let at = self.pieces.partition_point(|piece| piece.start < start);
        if let Some(same) = self.pieces.get(at)
            && same.start == start
            && *same.data == *data
            && is_last == (self.end == Some(end))
        {
            // A duplicate (RFC 8200 section 4.5).
            return Step::Waiting;
        }
        if !self.fits(at, (start, end), is_last) {
            self.drop_data();
            return Step::Overlap;
        }
        if self.pieces.len() == PIECES {
            self.drop_data();
            return Step::TooMany;
        }
        if start == 0 {
            self.protocol = fragment.protocol;
        }
        self.end = if is_last { Some(end) } else { self.end };
        self.len += data.len();
        self.used += PIECE + data.len();
        self.pieces.insert(at, Piece { start, data: data.into() });
        if self.end == Some(self.len) { Step::Whole } else { Step::Waiting }
    }

    /// Drops all data, and all later fragments. Returns true the first time.
    fn drop_data(&mut self) -> bool {
        self.pieces = Vec::new();
        self.used = PACKET;
        !std::mem::replace(&mut self.is_dropped, true)
    }

    /// Whether data fits between the pieces around index `at`, and before the end.
    fn fits(&self, at: usize, (start, end): (usize, usize), is_last: bool) -> bool {
        let before = at.checked_sub(1).map_or(0, |before| self.pieces[before].end());
        let behind = self.pieces.get(at);
        let is_free = before <= start && behind.is_none_or(|behind| end <= behind.start);
        let is_end = match self.end {
            Some(known) => end < known && !is_last,
            None => !is_last || behind.is_none(),
        };
        is_free && is_end
    }

    fn join(self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len);
        for piece in self.pieces {
            whole.extend_from_slice(&piece.data);
        }
        whole
    }
}

impl Piece {
    fn end(&self) -> usize {
        self.start + self.data.len()
    }
}

#[cfg(test)]
mod tests;
