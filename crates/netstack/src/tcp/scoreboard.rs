//! The data in flight: all ranges of the stream that were sent and are not acknowledged, the times
//! at which they were sent, and their selective acknowledgements (RFC 2018, RFC 6675 section 4).
//!
//! ```text
//!   una                                               next
//!    | sent 5 | sent 7, lost | sent 7, sacked | sent 8 |
//! ```
//!
//! A range is data that was sent at one time, such as a super-packet. It is split where an
//! acknowledgement ends within it.

use std::collections::VecDeque;

use super::{delivery::Snapshot, options::Block, seq::Seq};
use crate::time::Time;

/// The largest table that an idle connection retains.
const MAX_IDLE_CAPACITY: usize = 4;
/// Number of ranges from which on selective acknowledgements do not split ranges any more, because
/// each acknowledgement walks over all of them. 16 MiB in flight have as many ranges if every sixth
/// segment is lost.
const MAX_RANGES: usize = 4096;

/// A range of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentRange {
    /// The first sequence number.
    pub start: Seq,
    /// The sequence number after the last byte.
    pub end: Seq,
    /// Time at which it was sent last.
    pub sent: Time,
    /// The state of the delivery at that time.
    pub then: Snapshot,
    /// Whether it was sent more than once.
    pub again: bool,
    pub state: RangeState,
}

/// State of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeState {
    /// Neither acknowledged nor lost.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Considered lost, and not retransmitted yet.
    Lost,
}

/// The data that an acknowledgement newly covers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Number of bytes.
    pub bytes: u32,
    /// For data that was sent once: the times at which the first and the last was sent.
    pub once: Option<(Time, Time)>,
    /// The range that was sent last.
    pub newest: Option<SentRange>,
    /// The first byte that arrived after data that was sent later.
    pub overtaken: Option<Seq>,
}

/// All ranges, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    ranges: VecDeque<SentRange>,
    sacked: u32,
    lost: u32,
    /// The highest end of a selectively acknowledged range.
    highest: Option<Seq>,
}

impl SentRange {
    /// Number of bytes.
    pub(super) fn len(&self) -> u32 {
        self.end.since(self.start)
    }
}

impl Delivered {
    fn note(&mut self, range: &SentRange, highest: Option<Seq>) {
        self.bytes += range.len();
        if !range.again {
            let sent = range.sent;
            self.once = Some(
                self.once.map_or((sent, sent), |(first, last)| (first.min(sent), last.max(sent))),
            );
            if highest.is_some_and(|highest| range.end.before(highest)) {
                self.overtaken.get_or_insert(range.start);
            }
        }
        let later = |newest: &SentRange| {
            newest.sent > range.sent || newest.sent == range.sent && newest.end.after(range.end)
        };
        if !self.newest.as_ref().is_some_and(later) {
            self.newest = Some(*range);
        }
    }
}

impl Scoreboard {
    /// Whether no data is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &SentRange> {
        self.ranges.iter()
    }

    pub(super) fn last(&self) -> Option<&SentRange> {
        self.ranges.back()
    }

    /// Bytes that were selectively acknowledged.
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are considered lost.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes that are probably in the network: `pipe` of RFC 6675.
    pub(super) fn in_flight(&self) -> u32 {
        let all = match (self.ranges.front(), self.ranges.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        };
        all - self.sacked - self.lost
    }

    /// Records new data that was sent.
    pub(super) fn sent(&mut self, start: Seq, end: Seq, then: Snapshot, now: Time) {
        if let Some(last) = self.ranges.back_mut()
            && last.sent == now
            && !last.again
            && last.state == RangeState::InFlight
        {
            last.end = end;
            last.then.in_flight = then.in_flight;
            return;
        }
        if self.ranges.capacity() == 0 {
            // Most connections never need more.
            self.ranges.reserve_exact(1);
        }
        let state = RangeState::InFlight;
        self.ranges.push_back(SentRange { start, end, sent: now, then, again: false, state });
    }

    /// Records data that was retransmitted.
    pub(super) fn sent_again(&mut self, start: Seq, end: Seq, then: Snapshot, now: Time) {
        self.change(start, end, |range| {
            if range.state != RangeState::Sacked {
                range.state = RangeState::InFlight;
                range.again = true;
                range.sent = now;
                range.then = then;
            }
        });
    }

    /// The first range that must be retransmitted.
    pub(super) fn first_lost(&self) -> Option<&SentRange> {
        if self.lost == 0 {
            return None;
        }
        self.ranges.iter().find(|range| range.state == RangeState::Lost)
    }

    /// Removes all data before `una`.
    pub(super) fn acknowledge(&mut self, una: Seq, delivered: &mut Delivered) {
        let highest = self.highest;
        while let Some(first) = self.ranges.front_mut()
            && first.start.before(una)
        {
            let mut acknowledged = *first;
            if first.end.after(una) {
                acknowledged.end = una;
                first.start = una;
            } else {
                self.ranges.pop_front();
            }
            match acknowledged.state {
                RangeState::Sacked => self.sacked -= acknowledged.len(),
                RangeState::Lost => self.lost -= acknowledged.len(),
                RangeState::InFlight => {}
            }
            if acknowledged.state != RangeState::Sacked {
                delivered.note(&acknowledged, highest);
            }
        }
        if self.highest.is_some_and(|highest| !highest.after(una)) {
            self.highest = None;
        }
        if self.ranges.is_empty() && self.ranges.capacity() > MAX_IDLE_CAPACITY {
            self.ranges = VecDeque::new();
        }
    }

    /// Marks the bytes from `start` to `end` as arrived. Segments have at least `least` bytes,
    /// except the last of a range, so shorter blocks are forged. Only whole segments count.
    /// Otherwise the scoreboard could grow byte by byte (CVE-2019-11478).
    pub(super) fn sack(&mut self, (start, end): Block, least: u32, delivered: &mut Delivered) {
        let least = if self.ranges.len() < MAX_RANGES { least } else { u32::MAX / 4 };
        let start = self.whole_from(start, least);
        let end = self.whole_until(end, start, least);
        if !start.before(end) {
            return;
        }
        let highest = self.highest;
        let mut behind = None;
        self.change(start, end, |range| {
            if range.state != RangeState::Sacked {
                range.state = RangeState::Sacked;
                delivered.note(range, highest);
            }
            behind = Some(range.end);
        });
        if let Some(behind) = behind {
            self.highest = Some(self.highest.map_or(behind, |highest| highest.max(behind)));
        }
    }

    /// Moves the start of a block so that it does not split off less than `least` bytes.
    fn whole_from(&self, start: Seq, least: u32) -> Seq {
        let at = self.ranges.partition_point(|range| !range.end.after(start));
        match self.ranges.get(at) {
            Some(range) if range.start.before(start) => {
                let whole = start.max(range.start + least);
                if range.state == RangeState::Sacked { range.end } else { whole.min(range.end) }
            }
            _ => start,
        }
    }

    /// Moves the end of a block that begins at `start` in the same way.
    fn whole_until(&self, end: Seq, start: Seq, least: u32) -> Seq {
        let at = self.ranges.partition_point(|range| range.end.before(end));
        match self.ranges.get(at) {
            Some(range) if range.start.before(end) && end.before(range.end) => {
                let short = end.since(start.max(range.start)) < least;
                if short || range.state == RangeState::Sacked { range.start } else { end }
            }
            _ => end,
        }
    }

    /// Marks ranges in flight as lost if `is_lost` returns true.
    pub(super) fn mark_lost(&mut self, mut is_lost: impl FnMut(&SentRange) -> bool) {
        for range in &mut self.ranges {
            if range.state == RangeState::InFlight && is_lost(range) {
                range.state = RangeState::Lost;
                self.lost += range.len();
            }
        }
    }

    /// Whether the receiver has dropped acknowledged data: it acknowledges the very byte that it
    /// still expects (RFC 2018 section 8).
    pub(super) fn is_reneged(&self) -> bool {
        self.ranges.front().is_some_and(|first| first.state == RangeState::Sacked)
    }

    /// Marks selectively acknowledged ranges as lost.
    pub(super) fn lose_sacked(&mut self) {
        for range in &mut self.ranges {
            if range.state == RangeState::Sacked {
                range.state = RangeState::Lost;
                // Their acknowledgements do not measure the path (Karn's algorithm).
                range.again = true;
            }
        }
        self.lost += std::mem::take(&mut self.sacked);
        self.highest = None;
    }

    /// Marks at most `len` bytes at the beginning as lost.
    pub(super) fn lose_first(&mut self, len: u32) {
        let Some(first) = self.ranges.front() else { return };
        let (start, end) = (first.start, first.end.min(first.start + len));
        self.change(start, end, |range| range.state = RangeState::Lost);
    }

    /// Changes the ranges from `start` to `end`, after splitting them there.
    fn change(&mut self, start: Seq, end: Seq, mut change: impl FnMut(&mut SentRange)) {
        let mut at = self.ranges.partition_point(|range| !range.end.after(start));
        while let Some(range) = self.ranges.get(at)
            && range.start.before(end)
        {
            if range.start.before(start) {
                self.cut(at, start);
                at += 1;
            }
            if self.ranges[at].end.after(end) {
                self.cut(at, end);
            }
            let range = &mut self.ranges[at];
            let (before, len) = (range.state, range.len());
            change(range);
            let behind = range.state;
            if before != behind {
                self.count(before, |bytes| bytes - len);
                self.count(behind, |bytes| bytes + len);
            }
            at = if self.join(at) { at } else { at + 1 };
        }
        self.join(at);
    }

    fn count(&mut self, state: RangeState, change: impl FnOnce(u32) -> u32) {
        match state {
            RangeState::Sacked => self.sacked = change(self.sacked),
            RangeState::Lost => self.lost = change(self.lost),
            RangeState::InFlight => {}
        }
    }

    fn cut(&mut self, at: usize, seq: Seq) {
        let range = &mut self.ranges[at];
        let behind = SentRange { start: seq, ..*range };
        range.end = seq;
        self.ranges.insert(at + 1, behind);
    }

    /// Joins a sacked range with the previous one; the times do not matter any more. Returns
    /// whether it did.
    fn join(&mut self, at: usize) -> bool {
        let sacked = |range: &SentRange| range.state == RangeState::Sacked;
        let is_sacked = |at| self.ranges.get(at).is_some_and(sacked);
        if at == 0 || !is_sacked(at) || !is_sacked(at - 1) {
            return false;
        }
        self.ranges[at - 1].end = self.ranges[at].end;
        self.ranges.remove(at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 100;

    /// The ranges after sending up to `ends` and receiving `blocks`: start, end, and whether it is
    /// acknowledged.
    fn ranges_after(ends: &[u32], blocks: &[(u32, u32)]) -> Vec<(u32, u32, bool)> {
        let mut board = Scoreboard::default();
        let mut start = 0;
        for (at, end) in ends.iter().enumerate() {
            let now = Time::new(std::time::Duration::from_secs(at as u64));
            board.sent(Seq(start), Seq(*end), Snapshot::default(), now);
            start = *end;
        }
        let mut delivered = Delivered::default();
        for (start, end) in blocks {
            board.sack((Seq(*start), Seq(*end)), LEAST, &mut delivered);
        }
        let sacked = |range: &&SentRange| range.state == RangeState::Sacked;
        let bytes: u32 = board.iter().filter(sacked).map(SentRange::len).sum();
        assert_eq!((board.sacked(), delivered.bytes), (bytes, bytes));
        let of = |range: &SentRange| (range.start.0, range.end.0, sacked(&range));
        board.iter().map(of).collect()
    }

    #[test]
    fn acknowledged_whole_segments_are_marked_exactly() {
        let cut = [(0, 100, false), (100, 300, true), (300, 350, false)];
        assert_eq!(ranges_after(&[350], &[(100, 300)]), cut, "the last is short");
        assert_eq!(ranges_after(&[350], &[(300, 350)]), [(0, 300, false), (300, 350, true)]);
        assert_eq!(ranges_after(&[100, 110, 400], &[(100, 110)])[1], (100, 110, true));
        assert_eq!(ranges_after(&[100, 110, 400], &[(100, 310)])[1], (100, 310, true));
    }

    #[test]
    fn acknowledged_parts_of_a_segment_are_ignored() {
        let whole = [(0, 1000, false)];
        for block in [(300, 301), (300, 399), (1, 101), (99, 199), (0, 99)] {
            assert_eq!(ranges_after(&[1000], &[block]), whole, "{block:?}");
        }
        let inward = [(0, 100, false), (100, 300, true), (300, 1000, false)];
        assert_eq!(ranges_after(&[1000], &[(1, 300)]), inward);
    }

    #[test]
    fn adjacent_acknowledged_ranges_are_joined() {
        let grown = [(0, 200, false), (200, 500, true), (500, 1000, false)];
        assert_eq!(ranges_after(&[1000], &[(200, 300), (300, 400), (400, 500)]), grown);
        assert_eq!(ranges_after(&[1000], &[(400, 500), (300, 400), (200, 300)]), grown);
        assert_eq!(ranges_after(&[1000], &[(200, 300), (400, 500), (300, 400)]), grown);
        assert_eq!(ranges_after(&[1000], &[(200, 500), (250, 450), (200, 500)]), grown);
    }

    #[test]
    fn the_number_of_ranges_is_bounded_and_whole_ranges_are_still_marked() {
        let all = 300 * MAX_RANGES as u32;
        let blocks: Vec<_> = (0..all / 200).map(|at| (200 * at, 200 * at + 100)).collect();
        let cut = ranges_after(&[all], &blocks);
        assert!((MAX_RANGES..MAX_RANGES + 2).contains(&cut.len()), "{}", cut.len());
        let blocks = [&blocks[..], &[(100, all)]].concat();
        assert_eq!(ranges_after(&[all], &blocks).last(), Some(&(0, all, true)));
    }
}
