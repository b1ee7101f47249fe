//! The received stream. Data in order waits to be read, and out-of-order data waits for the missing
//! bytes.
//!
//! ```text
//!   read ->  | in order | gap | data | gap | data |    ... end of the window
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

/// The most out-of-order ranges. Data that would create another one is dropped.
const MAX_OUT_OF_ORDER: usize = 256;
/// The largest window beyond unread data while memory is short, in bytes.
const SHORT_WINDOW: u32 = 32 * 1024;

#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    /// Bytes in order that were not read.
    readable: u32,
    next: Seq,
    /// Out-of-order ranges, sorted.
    out_of_order: Vec<Block>,
    /// Start of the range that grew last.
    latest: Option<Seq>,
    /// A duplicate range, to be reported once (RFC 2883).
    duplicate: Option<Block>,
    /// End of the window that was announced last.
    offered: Seq,
    /// Shift of the window in headers.
    scale: u8,
    /// End of the stream, once known.
    end: Option<Seq>,
    tuning: Tuning,
}

/// Result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// No data.
    Nothing,
    /// The next bytes.
    InOrder,
    /// Data that must be acknowledged at once: it is out of order, a duplicate, or fills a gap.
    AckNow,
    /// The data does not fit.
    Refused,
}

impl Receiver {
    /// Creates a receiver with a window of at most `most` bytes.
    pub(super) fn new(most: usize, budget: Budget) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(65_535 << 14);
        let scale = (0..14).find(|scale| 65_535 << scale >= most).unwrap_or(14);
        Self {
            ring: Ring::new(budget),
            readable: 0,
            next: Seq(0),
            out_of_order: Vec::new(),
            latest: None,
            duplicate: None,
            offered: Seq(0),
            scale,
            end: None,
            tuning: Tuning::new(most),
        }
    }

    /// Starts the stream after `initial`.
    pub(super) fn begin(&mut self, initial: Seq) {
        self.next = initial + 1;
        self.offered = self.next + self.window();
    }

    /// Handles that the peer does not support window scaling.
    pub(super) fn forbid_scale(&mut self) {
        self.scale = 0;
        self.tuning.limit_to(65_535);
    }

    /// Shift of the window in headers.
    pub(super) fn scale(&self) -> u8 {
        self.scale
    }

    /// The next expected sequence number.
    pub(super) fn next(&self) -> Seq {
        self.next + u32::from(self.has_ended())
    }

    /// Bytes that can be read.
    pub(super) fn readable(&self) -> usize {
        self.readable as usize
    }

    /// Whether the whole stream has arrived.
    pub(super) fn has_ended(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Whether bytes before received data or FIN are missing.
    pub(super) fn has_gap(&self) -> bool {
        !self.out_of_order.is_empty() || self.out_of_order_end().is_some()
    }

    /// End of the stream, while bytes before it are missing.
    fn out_of_order_end(&self) -> Option<Seq> {
        self.end.filter(|end| *end != self.next)
    }

    /// End of the announced window.
    pub(super) fn offered(&self) -> Seq {
        self.offered
    }

    fn window(&self) -> u32 {
        let free = self.tuning.limit().saturating_sub(self.readable);
        let short = self.ring.budget().is_short();
        if short { free.min(SHORT_WINDOW) } else { free }
    }

    /// End of the window that may be announced now. It never decreases.
    fn offerable(&self) -> Seq {
        self.offered.max(self.next + self.window())
    }

    /// Announces the window. Returns its value for a header. Small increases are not announced (RFC
    /// 9293 section 3.8.6.2.2).
    pub(super) fn offer(&mut self, mss: u32) -> u16 {
        let offerable = self.offerable();
        if self.is_worth_offering(offerable, mss) {
            self.offered = offerable;
        }
        let window = self.offered.since(self.next());
        // Rounded down, so that the sender does not exceed the window.
        (window >> self.scale).min(65_535) as u16
    }

    fn is_worth_offering(&self, offerable: Seq, mss: u32) -> bool {
        offerable.since(self.offered) >= mss.min(self.tuning.limit() / 2)
    }

    /// Whether to announce the window in a separate segment: it at least doubles, and grows by at
    /// least two segments.
    pub(super) fn wants_to_offer(&self, mss: u32) -> bool {
        let left = self.offered.since(self.next);
        let grown = self.offerable().since(self.offered);
        grown >= 2 * mss && grown >= left
    }

    /// Stores the payload of a segment at `seq`, as far as it is in the window.
    pub(super) fn receive(&mut self, seq: Seq, payload: &Payload<'_>) -> Arrival {
        let end = (seq + payload.len() as u32).min(self.end.unwrap_or(self.offered));
        let end = end.min(self.offered);
        let start = seq.max(self.next);
        if payload.len() > 0 && seq.before(self.next) {
            self.duplicate = Some((seq, (seq + payload.len() as u32).min(self.next)));
        }
        if !start.before(end) {
            return if payload.len() > 0 { Arrival::AckNow } else { Arrival::Nothing };
        }
        let len = end.since(start);
        let offset = (self.readable + start.since(self.next)) as usize;
        let out_of_order = start != self.next;
        if out_of_order
            && (self.out_of_order.len() >= MAX_OUT_OF_ORDER || self.ring.budget().is_short())
        {
            return Arrival::Refused;
        }
        let had_gap = self.has_gap();
        let mut room = self.ring.reserve(offset, len as usize);
        if room == 0 && !out_of_order && self.readable == 0 {
            // The out-of-order data uses the memory that was reserved for the missing bytes. It is
            // dropped in favour of them (RFC 2018 section 8).
            self.drop_out_of_order();
            room = self.ring.reserve(offset, len as usize);
        }
        if room == 0 || out_of_order && room < len as usize {
            return Arrival::Refused;
        }
        let from = start.since(seq) as usize;
        let ring = &mut self.ring;
        payload.each(from..from + room, |at, piece| ring.write(offset + at, piece));
        self.insert(start, start + room as u32);
        if out_of_order || had_gap || seq.before(start) {
            Arrival::AckNow
        } else {
            Arrival::InOrder
        }
    }

    /// Sets the end of the stream.
    pub(super) fn finish(&mut self, seq: Seq) {
        // Data after the end of the stream is an error of the peer.
        let goes_on = self.out_of_order.last().is_some_and(|(_, last)| last.after(seq));
        if !seq.before(self.next) && !goes_on {
            self.end.get_or_insert(seq);
        }
    }

    /// Records that the bytes from `start` to `end` are stored.
    fn insert(&mut self, mut start: Seq, mut end: Seq) {
        if start == self.next {
            // The ranges that are now contiguous with the data in order.
            let mut reached = 0;
            for (first, last) in &self.out_of_order {
                if first.after(end) {
                    break;
                }
                end = end.max(*last);
                reached += 1;
            }
            self.out_of_order.drain(..reached);
            if self.out_of_order.is_empty() {
                self.out_of_order = Vec::new();
            }
            self.readable += end.since(self.next);
            self.next = end;
            return;
        }
        let at = self.out_of_order.partition_point(|(_, last)| last.before(start));
        let mut behind = at;
        while let Some((first, last)) = self.out_of_order.get(behind)
            && !first.after(end)
        {
            let overlap = (start.max(*first), end.min(*last));
            if overlap.0.before(overlap.1) {
                self.duplicate = Some(overlap);
            }
            start = start.min(*first);
            end = end.max(*last);
            behind += 1;
        }
        self.out_of_order.splice(at..behind, [(start, end)]);
        self.latest = Some(start);
    }

    /// The selective acknowledgements: a duplicate, then the latest range, then the others (RFC
    /// 2018 section 4, RFC 2883). An out-of-order FIN is reported like a byte. Otherwise its sender
    /// would not learn which bytes before it are missing.
    pub(super) fn blocks(&mut self) -> ArrayVec<Block, MAX_BLOCKS> {
        let mut blocks: ArrayVec<Block, MAX_BLOCKS> = self.duplicate.take().into_iter().collect();
        let latest = self.latest.and_then(|latest| {
            self.out_of_order
                .iter()
                .position(|(first, last)| !latest.before(*first) && latest.before(*last))
        });
        let end = self.out_of_order_end();
        let with_end = |(first, last): Block| (first, last + u32::from(end == Some(last)));
        blocks.extend(latest.map(|latest| with_end(self.out_of_order[latest])));
        let fin_only =
            end.filter(|end| self.out_of_order.last().is_none_or(|(_, last)| last != end));
        let rest = self.out_of_order.iter().enumerate().filter(|(index, _)| Some(*index) != latest);
        let rest = fin_only.map(|end| (end, end)).into_iter().chain(rest.map(|(_, block)| *block));
        let left = BLOCKS_SENT - blocks.len();
        blocks.extend(rest.map(with_end).take(left));
        blocks
    }

    /// Whether there are selective acknowledgements.
    pub(super) fn has_blocks(&self) -> bool {
        self.duplicate.is_some() || self.has_gap()
    }

    /// Records a duplicate of a whole segment outside of the window.
    pub(super) fn note_duplicate(&mut self, start: Seq, end: Seq) {
        if start.before(end) && !end.after(self.next()) {
            self.duplicate = Some((start, end));
        }
    }

    /// Copies data in order to `to` and frees its space. Returns the number of bytes.
    pub(super) fn read(&mut self, to: &mut [u8], now: Time) -> usize {
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

    /// Records the time from announcing a window to receiving its data.
    pub(super) fn note_rtt(&mut self, rtt: std::time::Duration) {
        self.tuning.note_rtt(rtt);
    }

    /// Drops all unread data.
    pub(super) fn clear(&mut self) {
        self.readable = 0;
        self.drop_out_of_order();
    }

    /// Drops out-of-order data.
    pub(super) fn drop_out_of_order(&mut self) {
        self.out_of_order = Vec::new();
        if self.readable == 0 {
            self.ring.clear();
        }
    }
}
