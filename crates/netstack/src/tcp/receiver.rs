//! The stream that arrives: what is in order waits to be read, what came too early
//! waits for what is missing.
//!
//! ```text
//!   read ->  | in order | gap | early | gap | early |    ... window's end
//!                       next
//! ```

#[cfg(test)]
mod tests;
mod tuning;

use arrayvec::ArrayVec;
use tuning::Tuning;

use super::{
    options::{BLOCKS_SENT, Block, MAX_BLOCKS},
    ring::Ring,
    segment::Payload,
    seq::Seq,
};
use crate::{budget::Budget, time::Time};

/// Stretches that wait for what is missing, at most: what makes more is dropped.
const MAX_EARLY: usize = 256;
/// The most window that is offered beyond what waits while memory is short, in bytes.
const SHORT_WINDOW: u32 = 32 * 1024;

#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    /// Bytes in order that were not read yet.
    readable: u32,
    next: Seq,
    /// What came early, in order of the stream.
    early: Vec<Block>,
    /// The stretch that grew last.
    latest: Option<Seq>,
    /// What arrived twice, to be told of once (RFC 2883).
    twice: Option<Block>,
    /// The end of the window as it was offered last.
    offered: Seq,
    /// By how many bits the window is shifted in headers.
    scale: u8,
    /// Where the stream ends, once that is known.
    end: Option<Seq>,
    tuning: Tuning,
}

/// What an arrival was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing, but maybe FIN.
    Nothing,
    /// The next bytes.
    InOrder,
    /// Bytes that the sender should hear of at once: early, twice, or the missing.
    Remarkable,
    /// There was no room.
    Refused,
}

impl Receiver {
    /// For a window of at most `most` bytes.
    pub fn new(most: usize, budget: Budget) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(65_535 << 14);
        let scale = (0..14).find(|scale| 65_535 << scale >= most).unwrap_or(14);
        Self {
            ring: Ring::new(budget),
            readable: 0,
            next: Seq(0),
            early: Vec::new(),
            latest: None,
            twice: None,
            offered: Seq(0),
            scale,
            end: None,
            tuning: Tuning::new(most),
        }
    }

    /// The stream begins behind `initial`.
    pub fn begin(&mut self, initial: Seq) {
        self.next = initial + 1;
        self.offered = self.next + self.window();
    }

    /// The peer does not scale windows.
    pub fn forbid_scale(&mut self) {
        self.scale = 0;
        self.tuning.limit_to(65_535);
    }

    /// By how many bits the window is shifted in headers.
    pub fn scale(&self) -> u8 {
        self.scale
    }

    /// The next sequence number that is expected.
    pub fn next(&self) -> Seq {
        self.next + u32::from(self.has_ended())
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> usize {
        self.readable as usize
    }

    /// Whether the stream ended: all of it arrived.
    pub fn has_ended(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Whether something is missing before what came early.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty() || self.early_end().is_some()
    }

    /// Where the stream ends, while bytes before that are missing.
    fn early_end(&self) -> Option<Seq> {
        self.end.filter(|end| *end != self.next)
    }

    /// The end of the window that was offered.
    pub fn offered(&self) -> Seq {
        self.offered
    }

    fn window(&self) -> u32 {
        let free = self.tuning.limit().saturating_sub(self.readable);
        let short = self.ring.budget().is_short();
        if short { free.min(SHORT_WINDOW) } else { free }
    }

    /// The end of the window that would be offered now; it never moves back.
    fn offerable(&self) -> Seq {
        self.offered.max(self.next + self.window())
    }

    /// Offers the window; what a header says of it. A small step is not offered (RFC
    /// 9293 section 3.8.6.2.2).
    pub fn offer(&mut self, mss: u32) -> u16 {
        let offerable = self.offerable();
        if self.is_worth_offering(offerable, mss) {
            self.offered = offerable;
        }
        let window = self.offered.since(self.next());
        // Rounded down: nobody is to send what is not taken.
        (window >> self.scale).min(65_535) as u16
    }

    fn is_worth_offering(&self, offerable: Seq, mss: u32) -> bool {
        offerable.since(self.offered) >= mss.min(self.tuning.limit() / 2)
    }

    /// Whether the sender should hear of the window: it doubled, or opened by two
    /// segments and half of the buffer.
    pub fn wants_to_offer(&self, mss: u32) -> bool {
        let left = self.offered.since(self.next);
        let grown = self.offerable().since(self.offered);
        grown >= 2 * mss && grown >= left
    }

    /// Takes the payload of a segment at `seq`, as far as it lies in the window.
    pub fn receive(&mut self, seq: Seq, payload: &Payload<'_>) -> Arrival {
        let end = (seq + payload.len() as u32).min(self.end.unwrap_or(self.offered));
        let end = end.min(self.offered);
        let start = seq.max(self.next);
        if payload.len() > 0 && seq.before(self.next) {
            self.twice = Some((seq, (seq + payload.len() as u32).min(self.next)));
        }
        if !start.before(end) {
            return if payload.len() > 0 { Arrival::Remarkable } else { Arrival::Nothing };
        }
        let len = end.since(start);
        let offset = (self.readable + start.since(self.next)) as usize;
        let early = start != self.next;
        if early && (self.early.len() >= MAX_EARLY || self.ring.budget().is_short()) {
            return Arrival::Refused;
        }
        let had_gap = self.has_gap();
        let mut room = self.ring.reserve(offset, len as usize);
        if room == 0 && !early && self.readable == 0 {
            // What came early holds memory, and so the missing bytes have none set aside:
            // it is given up for them (RFC 2018 section 8).
            self.forget_early();
            room = self.ring.reserve(offset, len as usize);
        }
        if room == 0 || early && room < len as usize {
            return Arrival::Refused;
        }
        let from = start.since(seq) as usize;
        let ring = &mut self.ring;
        payload.each(from..from + room, |at, piece| ring.write(offset + at, piece));
        self.place(start, start + room as u32);
        if early || had_gap || seq.before(start) { Arrival::Remarkable } else { Arrival::InOrder }
    }

    /// The stream ends at `seq`.
    pub fn finish(&mut self, seq: Seq) {
        // A stream that goes on behind its end is the peer's fault.
        let goes_on = self.early.last().is_some_and(|(_, last)| last.behind(seq));
        if !seq.before(self.next) && !goes_on {
            self.end.get_or_insert(seq);
        }
    }

    /// Notes that the bytes from `start` to `end` are there.
    fn place(&mut self, mut start: Seq, mut end: Seq) {
        if start == self.next {
            // A stretch that it reaches, and those that reaches, are in order now.
            let mut reached = 0;
            for (first, last) in &self.early {
                if first.behind(end) {
                    break;
                }
                end = end.max(*last);
                reached += 1;
            }
            self.early.drain(..reached);
            if self.early.is_empty() {
                self.early = Vec::new();
            }
            self.readable += end.since(self.next);
            self.next = end;
            return;
        }
        let at = self.early.partition_point(|(_, last)| last.before(start));
        let mut behind = at;
        while let Some((first, last)) = self.early.get(behind)
            && !first.behind(end)
        {
            let overlap = (start.max(*first), end.min(*last));
            if overlap.0.before(overlap.1) {
                self.twice = Some(overlap);
            }
            start = start.min(*first);
            end = end.max(*last);
            behind += 1;
        }
        self.early.splice(at..behind, [(start, end)]);
        self.latest = Some(start);
    }

    /// What to acknowledge selectively: what came twice, then what came last, then the
    /// rest (RFC 2018 section 4, RFC 2883). An early FIN is told of like a byte: its
    /// sender learns nothing else of what is missing before it.
    pub fn blocks(&mut self) -> ArrayVec<Block, MAX_BLOCKS> {
        let mut blocks: ArrayVec<Block, MAX_BLOCKS> = self.twice.take().into_iter().collect();
        let latest = self.latest.and_then(|latest| {
            self.early
                .iter()
                .position(|(first, last)| !latest.before(*first) && latest.before(*last))
        });
        let end = self.early_end();
        let with_end = |(first, last): Block| (first, last + u32::from(end == Some(last)));
        blocks.extend(latest.map(|latest| with_end(self.early[latest])));
        let lone = end.filter(|end| self.early.last().is_none_or(|(_, last)| last != end));
        let rest = self.early.iter().enumerate().filter(|(index, _)| Some(*index) != latest);
        let rest = lone.map(|end| (end, end)).into_iter().chain(rest.map(|(_, block)| *block));
        let left = BLOCKS_SENT - blocks.len();
        blocks.extend(rest.map(with_end).take(left));
        blocks
    }

    /// Whether there is something to acknowledge selectively.
    pub fn has_blocks(&self) -> bool {
        self.twice.is_some() || self.has_gap()
    }

    /// Notes that a whole segment came twice that was outside of the window.
    pub fn note_twice(&mut self, start: Seq, end: Seq) {
        if start.before(end) && !end.behind(self.next()) {
            self.twice = Some((start, end));
        }
    }

    /// Copies what is in order to `to`, and makes room; how many bytes.
    pub fn read(&mut self, to: &mut [u8], now: Time) -> usize {
        let len = to.len().min(self.readable());
        self.ring.read(0, &mut to[..len]);
        if len == 0 {
            return 0;
        }
        self.ring.consume(len);
        self.readable -= len as u32;
        let room = self.ring.budget().left() / 4;
        self.tuning.read(len as u32, u32::try_from(room).unwrap_or(u32::MAX), now);
        len
    }

    /// How long a byte takes to come after it was allowed to.
    pub fn note_rtt(&mut self, rtt: std::time::Duration) {
        self.tuning.note_rtt(rtt);
    }

    /// Forgets everything that was not read.
    pub fn clear(&mut self) {
        self.readable = 0;
        self.forget_early();
    }

    /// Forgets what came too early.
    pub fn forget_early(&mut self) {
        self.early = Vec::new();
        if self.readable == 0 {
            self.ring.clear();
        }
    }
}
