//! The blocks of a group that wait for a lane.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::{BLOCK, LANES, PACKETS, Packet, Run};

pub(super) type Runs = ArrayVec<Run, LANES>;

pub(super) struct Queue {
    /// The remaining blocks of each packet.
    packets: ArrayVec<Range<usize>, PACKETS>,
    /// Number of all waiting blocks.
    blocks: usize,
    /// The first packet that may have waiting blocks.
    first: usize,
}

impl Queue {
    pub(super) fn new(packets: &[Packet<'_>]) -> Self {
        let packets: ArrayVec<Range<usize>, PACKETS> =
            packets.iter().map(|packet| 1..1 + packet.text.len().div_ceil(BLOCK)).collect();
        let blocks = packets.iter().map(ExactSizeIterator::len).sum();
        Self { packets, blocks, first: 0 }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Assigns the next blocks to lanes.
    pub(super) fn fill(&mut self, runs: &mut Runs, lanes: Range<usize>) {
        let mut lane = lanes.start;
        while lane < lanes.end && self.blocks > 0 {
            let waiting = &mut self.packets[self.first];
            let blocks = waiting.len().min(lanes.end - lane);
            if blocks > 0 {
                runs.push(Run { packet: self.first, block: waiting.start, lane, blocks });
                waiting.start += blocks;
                self.blocks -= blocks;
                lane += blocks;
            }
            if waiting.start == waiting.end {
                self.first += 1;
            }
        }
    }

    /// Removes the blocks of all packets except these.
    pub(super) fn retain(&mut self, packets: &[bool; PACKETS]) {
        for (waiting, retain) in self.packets.iter_mut().zip(packets) {
            if !retain {
                self.blocks -= waiting.len();
                waiting.start = waiting.end;
            }
        }
    }
}
