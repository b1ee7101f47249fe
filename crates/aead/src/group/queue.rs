//! The blocks of a group that wait for a lane.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::{BLOCK, LANES, PACKETS, Packet, Run};

pub(super) type Runs = ArrayVec<Run, LANES>;

pub(super) struct Queue {
    /// Of each packet, the block that is next, and one more than the last.
    packets: ArrayVec<Range<usize>, PACKETS>,
    /// All that wait.
    blocks: usize,
    /// The first packet that may have any.
    first: usize,
    /// A full group of packets of one length, which go side by side.
    abreast: bool,
}

impl Queue {
    pub(super) fn new(packets: &[Packet<'_>]) -> Self {
        let first = packets.first().map_or(0, |packet| packet.text.len());
        let abreast =
            packets.len() == PACKETS && packets.iter().all(|packet| packet.text.len() == first);
        let packets: ArrayVec<Range<usize>, PACKETS> =
            packets.iter().map(|packet| 1..1 + packet.text.len().div_ceil(BLOCK)).collect();
        let blocks = packets.iter().map(ExactSizeIterator::len).sum();
        Self { packets, blocks, first: 0, abreast }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Fills lanes with what is next.
    pub(super) fn fill(&mut self, runs: &mut Runs, mut lanes: Range<usize>) {
        if self.abreast && lanes.len() == PACKETS {
            for packet in 0..PACKETS {
                self.run(runs, packet, &mut (lanes.start + packet..lanes.start + packet + 1));
            }
            return;
        }
        while !lanes.is_empty() && self.blocks > 0 {
            self.run(runs, self.first, &mut lanes);
            if self.packets[self.first].is_empty() {
                self.first += 1;
            }
        }
    }

    /// Gives lanes to a packet.
    fn run(&mut self, runs: &mut Runs, packet: usize, lanes: &mut Range<usize>) {
        let waiting = &mut self.packets[packet];
        let blocks = waiting.len().min(lanes.len());
        if blocks > 0 {
            runs.push(Run { packet, block: waiting.start, lane: lanes.start, blocks });
            waiting.start += blocks;
            lanes.start += blocks;
            self.blocks -= blocks;
        }
    }

    /// The full blocks that wait of each packet, if the packets go side by side.
    pub(super) fn abreast(&self, packets: &[Packet<'_>]) -> Option<Range<usize>> {
        let full = packets.first()?.text.len() / BLOCK;
        self.abreast.then(|| self.packets[0].start..1 + full)
    }

    /// So many blocks of each packet wait no more.
    pub(super) fn skip(&mut self, blocks: usize) {
        for waiting in &mut self.packets {
            waiting.start += blocks;
            self.blocks -= blocks;
        }
    }

    /// Leaves a packet as it is.
    pub(super) fn forget(&mut self, packet: usize) {
        let waiting = &mut self.packets[packet];
        self.blocks -= waiting.len();
        waiting.start = waiting.end;
        self.abreast = false;
    }
}
