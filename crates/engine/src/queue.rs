//! What was read from the IP side and waits for its turn: a queue for each flow,
//! sparse flows first (FQ-CoDel, RFC 8290).
//!
//! ```text
//!                         +- flow: | p p p |
//!   Batch --- by hash ----+- flow: | p |          --- round --> to be sealed
//!   (read until empty)    `- flow: | p p p p p |
//! ```
//!
//! The kernel's own queue in front of a TUN device is one for all flows, and
//! tells TCP nothing of its length. So it is emptied early and often, and a lone
//! packet need not wait behind a bulk transfer.
//!
//! A flow has one queue, and so keeps its order. The packets stay where they were
//! read; a queue holds where they stand. What is kept is bounded: beyond it packets
//! stay in the kernel's queue, which drops before anything was spent on them. So a
//! fast machine keeps less than CoDel's 5 ms, and CoDel is for slower ones.

use std::{
    collections::VecDeque,
    iter,
    ops::{Index, IndexMut},
    time::Duration,
};

use arrayvec::ArrayVec;
use packet::{Batch, Offload, ip::mark_congestion, wire::IpHeader};
use wg::Time;

use crate::{codel::Codel, vector::vector};

/// Queues, as many as a `u8` names; flows that share one also share its turn (RFC
/// 8290 has 1024).
const FLOWS: usize = 1 << u8::BITS;
/// Bytes that a flow may send before others have their turn: about ten packets,
/// so that what is sparse goes at once, and bulk flows take turns of a
/// super-packet each.
const QUANTUM: i32 = 16 * 1024;
/// What a packet costs beside its bytes, in bytes.
const OVERHEAD: usize = 256;
/// The wait that a flow's queue may stand at (RFC 8289 section 4.3).
const TARGET: Duration = Duration::from_millis(5);
/// Packets of one batch.
const BATCH_PACKETS: usize = 128;
/// Bytes of one batch: two of the largest packets.
const BATCH_BYTES: usize = 2 * Batch::ROOM;
/// Batches at most, 1 MiB: what is sent in 1.6 ms at 5 Gbit/s. With half of that a lone packet waits
/// behind others in the TUN more often (docs/decisions/0018).
const BATCHES: usize = 8;

/// Packets of one round: enough that small packets pay for their system calls.
pub(crate) const ROUND_PACKETS: usize = 128;
/// Bytes after which a round ends, and others have their turn on the core: enough that a turn
/// is worth its switch, little enough that what arrives meanwhile does not wait long.
const ROUND_BYTES: usize = 4 * packet::MAX_PACKET;

/// Packets that are worked on together.
pub(crate) type Round = ArrayVec<QueuedPacket, ROUND_PACKETS>;

/// A packet that has its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedPacket {
    batch: u8,
    index: u8,
    /// Its headers; `None` where it is no IP packet.
    pub header: Option<IpHeader>,
    /// Whether its first segment is to be dropped, to tell the sender of
    /// congestion.
    pub drops_first: bool,
}

/// The queues of all flows, and the memory of what stands in them.
pub(crate) struct Queue {
    batches: Vec<Stored>,
    /// Batches without packets; the last used is used next, while it is in the
    /// cache.
    free: Vec<u8>,
    /// The batch that is read into.
    open: Option<u8>,
    flows: Flows,
    /// Flows that became active, and those that had their first turn: RFC 8290
    /// section 4.2.
    new: VecDeque<u8>,
    old: VecDeque<u8>,
    /// Packets in all queues.
    waiting: usize,
}

struct Stored {
    batch: Batch,
    /// How many of its packets were queued.
    known: usize,
    /// How many of them were not released yet.
    held: usize,
    /// When the first of them came.
    since: Time,
}

struct Flows(Box<[Flow]>);

struct Flow {
    packets: VecDeque<Waiting>,
    /// Bytes it may still send in this turn.
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
    pub fn new() -> Self {
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

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A batch with room, to be read into; `None` while too much waits.
    pub fn spare(&mut self) -> Option<&mut Batch> {
        let open = match self.open.or_else(|| self.free.pop()) {
            Some(open) => open,
            None if self.batches.len() < BATCHES => {
                let batch = Batch::new(BATCH_PACKETS, BATCH_BYTES);
                self.batches.push(Stored { batch, known: 0, held: 0, since: Time::from_nanos(0) });
                (self.batches.len() - 1) as u8
            }
            None => return None,
        };
        self.open = Some(open);
        Some(&mut self.batches[usize::from(open)].batch)
    }

    /// Queues what was read into the spare batch. Returns whether that is full:
    /// there may be more to read.
    pub fn enqueue_new(&mut self, now: Time) -> bool {
        let Some(open) = self.open else { return false };
        let Stored { batch, known, held, since } = &mut self.batches[usize::from(open)];
        if *known == 0 {
            *since = now;
        }
        for index in *known..batch.len() {
            let (packet, _) = batch.get(index);
            let header = IpHeader::parse(packet).ok();
            let id = header.map_or(0, |header| header.flow(packet)) as u8;
            let flow = &mut self.flows[id];
            flow.packets.push_back(Waiting { batch: open, index: index as u8, header, since: now });
            if !flow.active {
                flow.active = true;
                flow.deficit = QUANTUM;
                self.new.push_back(id);
            }
        }
        self.waiting += batch.len() - *known;
        *held += batch.len() - *known;
        *known = batch.len();
        let full = batch.is_full();
        if full {
            self.open = None;
        }
        full
    }

    /// When the oldest batch came of which something waits; to be asked between two
    /// rounds.
    pub fn oldest(&self) -> Option<Time> {
        let waiting = self.batches.iter().filter(|stored| stored.held > 0);
        waiting.map(|stored| stored.since).min()
    }

    /// Takes the packets whose turn it is.
    pub fn next_round(&mut self, round: &mut Round, now: Time) {
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
                // Once more in line, so that it does not come first again at once.
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
    pub fn packet(&self, packet: QueuedPacket) -> (&[u8], Offload) {
        self.batches[usize::from(packet.batch)].batch.get(packet.index.into())
    }

    /// Takes the memory of the round's packets back.
    pub fn release(&mut self, round: &mut Round) {
        for packet in round.drain(..) {
            let Stored { batch, known, held, .. } = &mut self.batches[usize::from(packet.batch)];
            *held -= 1;
            if *held == 0 {
                batch.clear();
                *known = 0;
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
