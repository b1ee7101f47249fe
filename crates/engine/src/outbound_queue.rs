//! Queues packets from the IP side: one queue for each flow, sparse flows first (FQ-CoDel, RFC
//! 8290).
//!
//! ```text
//!                         +- flow: | p p p |
//!   Batch --- by hash ----+- flow: | p |          --- round --> sealed and sent
//!   (read until empty)    `- flow: | p p p p p |
//! ```
//!
//! The kernel has one queue for all flows of a TUN device, and does not report its length to TCP.
//! This queue therefore reads from it early and often, so that a single packet does not wait behind
//! a bulk transfer.
//!
//! Each flow has one queue and stays in order. Packets remain in the batch into which they were
//! read; a queue holds their positions. The memory is bounded. Beyond the bound packets remain in
//! the kernel's queue, which drops them at no cost. A fast machine therefore never reaches CoDel's
//! 5 ms; CoDel is for slower ones.

use std::{
    collections::VecDeque,
    iter,
    ops::{Index, IndexMut},
    time::Duration,
};

use arrayvec::ArrayVec;
use packet::{Batch, Offload, ip::mark_congestion, wire::IpHeader};
use wg::Time;

use crate::{batch_limit::vector, codel::Codel};

/// Number of queues, addressed by a `u8`. Flows in the same queue share its turn (RFC 8290 has
/// 1024).
const FLOWS: usize = 1 << u8::BITS;
/// Bytes that a flow may send in one turn: about ten packets of the MTU. Sparse flows are sent at
/// once, and bulk flows alternate by super-packets.
const QUANTUM: i32 = 16 * 1024;
/// Overhead of a packet, in bytes.
const OVERHEAD: usize = 256;
/// Acceptable wait in a flow's queue (RFC 8289 section 4.3).
const TARGET: Duration = Duration::from_millis(5);
/// Packets of one batch.
const BATCH_PACKETS: usize = 128;
/// Bytes of one batch: two of the largest packets.
const BATCH_BYTES: usize = 2 * Batch::ROOM;
/// The most batches, 1 MiB: they are sent in 1.6 ms at 5 Gbit/s. With half of that, a single packet
/// waits in the TUN behind others more often (docs/decisions/0018).
const BATCHES: usize = 8;

/// The most packets of one round: enough to amortize system calls over small packets.
pub(crate) const ROUND_PACKETS: usize = 128;
/// Bytes after which a round ends and other threads may run. It is large enough to amortize a
/// context switch, and small enough that new packets do not wait long.
const ROUND_BYTES: usize = 4 * packet::MAX_PACKET;

/// Packets that are processed together.
pub(crate) type Round = ArrayVec<QueuedPacket, ROUND_PACKETS>;

/// A packet of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedPacket {
    batch: u8,
    index: u8,
    /// The parsed headers; `None` if it is not an IP packet.
    pub header: Option<IpHeader>,
    /// Whether to drop its first segment, as a congestion signal.
    pub drops_first: bool,
}

/// The queues of all flows, and the memory of their packets.
pub(crate) struct Queue {
    batches: Vec<Stored>,
    /// Empty batches. The last used is reused first, while it is in the cache.
    free: Vec<u8>,
    /// The batch that is being filled.
    open: Option<u8>,
    flows: Flows,
    /// Queues that became active, and those that have had their first turn (RFC 8290 section 4.2).
    new: VecDeque<u8>,
    old: VecDeque<u8>,
    /// Packets in all queues.
    waiting: usize,
}

struct Stored {
    batch: Batch,
    /// Number of its packets that were queued.
    queued: usize,
    /// Number of queued packets that were not released.
    unreleased: usize,
    /// Arrival of its first packet.
    since: Time,
}

struct Flows(Box<[Flow]>);

struct Flow {
    packets: VecDeque<Waiting>,
    /// Bytes that may still be sent in this turn.
    deficit: i32,
    codel: Codel,
    active: bool,
}

impl Default for Flow {
    fn default() -> Self {
        let (packets, codel) = (VecDeque::new(), Codel::new(TARGET));
        Self { packets, deficit: 0, codel, active: false }
    }
}

#[derive(Clone, Copy)]
struct Waiting {
    batch: u8,
    index: u8,
    header: Option<IpHeader>,
    since: Time,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            batches: Vec::with_capacity(BATCHES),
            free: Vec::with_capacity(BATCHES),
            open: None,
            flows: Flows(iter::repeat_with(Flow::default).take(FLOWS).collect()),
            new: VecDeque::new(),
            old: VecDeque::new(),
            waiting: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A batch with space for reading. Returns `None` if the memory is used up.
    pub(crate) fn spare(&mut self) -> Option<&mut Batch> {
        let open = match self.open.or_else(|| self.free.pop()) {
            Some(open) => open,
            None if self.batches.len() < BATCHES => {
                let batch = Batch::new(BATCH_PACKETS, BATCH_BYTES);
                self.batches.push(Stored {
                    batch,
                    queued: 0,
                    unreleased: 0,
                    since: Time::from_nanos(0),
                });
                (self.batches.len() - 1) as u8
            }
            None => return None,
        };
        self.open = Some(open);
        Some(&mut self.batches[usize::from(open)].batch)
    }

    /// Queues the packets that were read into the spare batch. Returns whether the batch is full,
    /// which means that more can be read.
    pub(crate) fn enqueue_new(&mut self, now: Time) -> bool {
        let Some(open) = self.open else { return false };
        let Stored { batch, queued, unreleased, since } = &mut self.batches[usize::from(open)];
        if *queued == 0 {
            *since = now;
        }
        for index in *queued..batch.len() {
            let (packet, _) = batch.get(index);
            let header = IpHeader::parse(packet).ok();
            let id = header.map_or(0, |header| header.flow_hash(packet)) as u8;
            let flow = &mut self.flows[id];
            flow.packets.push_back(Waiting { batch: open, index: index as u8, header, since: now });
            if !flow.active {
                flow.active = true;
                flow.deficit = QUANTUM;
                self.new.push_back(id);
            }
        }
        self.waiting += batch.len() - *queued;
        *unreleased += batch.len() - *queued;
        *queued = batch.len();
        let full = batch.is_full();
        if full {
            self.open = None;
        }
        full
    }

    /// Arrival of the oldest batch with waiting packets. Must be called between two rounds.
    pub(crate) fn oldest(&self) -> Option<Time> {
        let waiting = self.batches.iter().filter(|stored| stored.unreleased > 0);
        waiting.map(|stored| stored.since).min()
    }

    /// Takes the next packets.
    pub(crate) fn next_round(&mut self, round: &mut Round, now: Time) {
        let (mut bytes, most) = (0, vector(ROUND_PACKETS));
        while round.len() < most
            && bytes < ROUND_BYTES
            && let Some((packet, len)) = self.pop(now)
        {
            bytes += len;
            round.push(packet);
        }
    }

    /// The next packet, by deficit round robin.
    fn pop(&mut self, now: Time) -> Option<(QueuedPacket, usize)> {
        loop {
            let from_new = !self.new.is_empty();
            let turns = if from_new { &mut self.new } else { &mut self.old };
            let id = *turns.front()?;
            let flow = &mut self.flows[id];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                turns.pop_front();
                self.old.push_back(id);
                continue;
            }
            let Some(Waiting { batch, index, mut header, since }) = flow.packets.pop_front() else {
                // Moves an empty queue to the other list, so that its next packet does not come
                // first immediately.
                turns.pop_front();
                if from_new && !self.old.is_empty() {
                    self.old.push_back(id);
                } else {
                    flow.active = false;
                }
                continue;
            };
            let standing = !flow.packets.is_empty();
            let congested = flow.codel.signals(now.since(since), standing, now);
            let packet = self.batches[usize::from(batch)].batch.get_mut(index.into());
            let len = packet.len();
            flow.deficit -= (len + OVERHEAD) as i32;
            self.waiting -= 1;
            let mut mark = || header.as_mut().is_some_and(|header| mark_congestion(header, packet));
            let drops_first = congested && !mark();
            return Some((QueuedPacket { batch, index, header, drops_first }, len));
        }
    }

    /// A packet of the round.
    pub(crate) fn packet(&self, packet: QueuedPacket) -> (&[u8], Offload) {
        self.batches[usize::from(packet.batch)].batch.get(packet.index.into())
    }

    /// Releases the memory of the round's packets.
    pub(crate) fn release(&mut self, round: &mut Round) {
        for packet in round.drain(..) {
            let Stored { batch, queued, unreleased, .. } =
                &mut self.batches[usize::from(packet.batch)];
            *unreleased -= 1;
            if *unreleased == 0 {
                batch.clear();
                *queued = 0;
                if self.open != Some(packet.batch) {
                    self.free.push(packet.batch);
                }
            }
        }
    }
}

impl Index<u8> for Flows {
    type Output = Flow;

    fn index(&self, id: u8) -> &Flow {
        &self.0[usize::from(id)]
    }
}

impl IndexMut<u8> for Flows {
    fn index_mut(&mut self, id: u8) -> &mut Flow {
        &mut self.0[usize::from(id)]
    }
}

#[cfg(test)]
mod tests;
