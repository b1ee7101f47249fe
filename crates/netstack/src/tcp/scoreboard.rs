//! What is on its way: every stretch of the stream that was sent and is not
//! acknowledged, when it was sent, and what selective acknowledgements say of it (RFC
//! 2018, RFC 6675 section 4).
//!
//! ```text
//!   una                                               next
//!    | sent 5 | sent 7, lost | sent 7, sacked | sent 8 |
//! ```
//!
//! A stretch is what left at one time, so a super-packet is one; it is cut where
//! an acknowledgement ends within it.

use std::collections::VecDeque;

use super::{delivery::Snapshot, options::Block, seq::Seq};
use crate::time::Time;

/// How many places an idle connection keeps.
const PLACES_KEPT: usize = 4;
/// Stretches from which on a selective acknowledgement cuts no more of them: each is
/// looked at with each acknowledgement. 16 MiB on their way become as many where every
/// sixth segment is lost.
const MOST: usize = 4096;

/// A stretch of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first sequence number.
    pub start: Seq,
    /// Behind the last.
    pub end: Seq,
    /// When it was sent last.
    pub sent: Time,
    /// What was known then.
    pub then: Snapshot,
    /// Whether more than once.
    pub again: bool,
    /// What is known of it.
    pub fate: Fate,
}

/// What is known of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing yet.
    Flying,
    /// It arrived.
    Sacked,
    /// It is taken for lost, and was not sent again yet.
    Lost,
}

/// What an acknowledgement newly told of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// How many bytes.
    pub bytes: u32,
    /// Of what was sent once, when the first and the last were.
    pub once: Option<(Time, Time)>,
    /// Of all, what was sent last.
    pub newest: Option<Stretch>,
    /// The first byte that arrived behind others that had been sent later.
    pub overtaken: Option<Seq>,
}

/// All stretches, in order and without gaps.
#[derive(Debug, Default)]
pub struct Scoreboard {
    stretches: VecDeque<Stretch>,
    sacked: u32,
    lost: u32,
    /// Behind the highest byte that was acknowledged selectively.
    highest: Option<Seq>,
}

impl Stretch {
    /// Bytes of it.
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }
}

impl Delivered {
    fn note(&mut self, stretch: &Stretch, highest: Option<Seq>) {
        self.bytes += stretch.len();
        if !stretch.again {
            let sent = stretch.sent;
            self.once = Some(
                self.once.map_or((sent, sent), |(first, last)| (first.min(sent), last.max(sent))),
            );
            if highest.is_some_and(|highest| stretch.end.before(highest)) {
                self.overtaken.get_or_insert(stretch.start);
            }
        }
        let later = |newest: &Stretch| {
            newest.sent > stretch.sent
                || newest.sent == stretch.sent && newest.end.behind(stretch.end)
        };
        if !self.newest.as_ref().is_some_and(later) {
            self.newest = Some(*stretch);
        }
    }
}

impl Scoreboard {
    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// All stretches.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Stretch> {
        self.stretches.iter()
    }

    /// The last stretch.
    pub fn last(&self) -> Option<&Stretch> {
        self.stretches.back()
    }

    /// Bytes that were acknowledged selectively.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are to be sent again.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes that are taken to be in the network: `pipe` of RFC 6675.
    pub fn flying(&self) -> u32 {
        let all = match (self.stretches.front(), self.stretches.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        };
        all - self.sacked - self.lost
    }

    /// Notes that new bytes were sent.
    pub fn sent(&mut self, start: Seq, end: Seq, then: Snapshot, now: Time) {
        if let Some(last) = self.stretches.back_mut()
            && last.sent == now
            && !last.again
            && last.fate == Fate::Flying
        {
            last.end = end;
            last.then.flying = then.flying;
            return;
        }
        if self.stretches.capacity() == 0 {
            // Most connections never have more on their way.
            self.stretches.reserve_exact(1);
        }
        let fate = Fate::Flying;
        self.stretches.push_back(Stretch { start, end, sent: now, then, again: false, fate });
    }

    /// Notes that bytes were sent again.
    pub fn sent_again(&mut self, start: Seq, end: Seq, then: Snapshot, now: Time) {
        self.change(start, end, |stretch| {
            if stretch.fate != Fate::Sacked {
                stretch.fate = Fate::Flying;
                stretch.again = true;
                stretch.sent = now;
                stretch.then = then;
            }
        });
    }

    /// The first stretch that is to be sent again.
    pub fn first_lost(&self) -> Option<&Stretch> {
        if self.lost == 0 {
            return None;
        }
        self.stretches.iter().find(|stretch| stretch.fate == Fate::Lost)
    }

    /// Everything before `una` arrived.
    pub fn acknowledge(&mut self, una: Seq, delivered: &mut Delivered) {
        let highest = self.highest;
        while let Some(first) = self.stretches.front_mut()
            && first.start.before(una)
        {
            let mut gone = *first;
            if first.end.behind(una) {
                gone.end = una;
                first.start = una;
            } else {
                self.stretches.pop_front();
            }
            match gone.fate {
                Fate::Sacked => self.sacked -= gone.len(),
                Fate::Lost => self.lost -= gone.len(),
                Fate::Flying => {}
            }
            if gone.fate != Fate::Sacked {
                delivered.note(&gone, highest);
            }
        }
        if self.highest.is_some_and(|highest| !highest.behind(una)) {
            self.highest = None;
        }
        if self.stretches.is_empty() && self.stretches.capacity() > PLACES_KEPT {
            self.stretches = VecDeque::new();
        }
    }

    /// The bytes from `start` to `end` arrived. No segment has less than `least`, but the
    /// last of a stretch: a peer that reports less is lying. Only whole segments count, so that
    /// the scoreboard cannot grow byte by byte (CVE-2019-11478).
    pub fn sack(&mut self, (start, end): Block, least: u32, delivered: &mut Delivered) {
        let least = if self.stretches.len() < MOST { least } else { u32::MAX / 4 };
        let start = self.whole_from(start, least);
        let end = self.whole_until(end, start, least);
        if !start.before(end) {
            return;
        }
        let highest = self.highest;
        let mut behind = None;
        self.change(start, end, |stretch| {
            if stretch.fate != Fate::Sacked {
                stretch.fate = Fate::Sacked;
                delivered.note(stretch, highest);
            }
            behind = Some(stretch.end);
        });
        if let Some(behind) = behind {
            self.highest = Some(self.highest.map_or(behind, |highest| highest.max(behind)));
        }
    }

    /// Where a block that begins at `start` cuts nothing shorter than `least` off.
    fn whole_from(&self, start: Seq, least: u32) -> Seq {
        let at = self.stretches.partition_point(|stretch| !stretch.end.behind(start));
        match self.stretches.get(at) {
            Some(stretch) if stretch.start.before(start) => {
                let whole = start.max(stretch.start + least);
                if stretch.fate == Fate::Sacked { stretch.end } else { whole.min(stretch.end) }
            }
            _ => start,
        }
    }

    /// Where the same that began at `start` and ends at `end` does not.
    fn whole_until(&self, end: Seq, start: Seq, least: u32) -> Seq {
        let at = self.stretches.partition_point(|stretch| stretch.end.before(end));
        match self.stretches.get(at) {
            Some(stretch) if stretch.start.before(end) && end.before(stretch.end) => {
                let short = end.since(start.max(stretch.start)) < least;
                if short || stretch.fate == Fate::Sacked { stretch.start } else { end }
            }
            _ => end,
        }
    }

    /// Has `is_lost` say of what is flying whether it is lost.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&Stretch) -> bool) {
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Flying && is_lost(stretch) {
                stretch.fate = Fate::Lost;
                self.lost += stretch.len();
            }
        }
    }

    /// Whether the receiver told of the very next byte that it waits for: it dropped what
    /// it had (RFC 2018 section 8).
    pub fn is_reneged(&self) -> bool {
        self.stretches.front().is_some_and(|first| first.fate == Fate::Sacked)
    }

    /// Believes no selective acknowledgement: all of it is to be sent again.
    pub fn lose_sacked(&mut self) {
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Sacked {
                stretch.fate = Fate::Lost;
                // It says nothing of the path when it arrives (Karn's rule).
                stretch.again = true;
            }
        }
        self.lost += std::mem::take(&mut self.sacked);
        self.highest = None;
    }

    /// Takes at most `len` bytes at the beginning for lost.
    pub fn lose_first(&mut self, len: u32) {
        let Some(first) = self.stretches.front() else { return };
        let (start, end) = (first.start, first.end.min(first.start + len));
        self.change(start, end, |stretch| stretch.fate = Fate::Lost);
    }

    /// Changes the stretches from `start` to `end`, after cutting them there.
    fn change(&mut self, start: Seq, end: Seq, mut change: impl FnMut(&mut Stretch)) {
        let mut at = self.stretches.partition_point(|stretch| !stretch.end.behind(start));
        while let Some(stretch) = self.stretches.get(at)
            && stretch.start.before(end)
        {
            if stretch.start.before(start) {
                self.cut(at, start);
                at += 1;
            }
            if self.stretches[at].end.behind(end) {
                self.cut(at, end);
            }
            let stretch = &mut self.stretches[at];
            let (before, len) = (stretch.fate, stretch.len());
            change(stretch);
            let behind = stretch.fate;
            if before != behind {
                self.count(before, |bytes| bytes - len);
                self.count(behind, |bytes| bytes + len);
            }
            at = if self.join(at) { at } else { at + 1 };
        }
        self.join(at);
    }

    fn count(&mut self, fate: Fate, change: impl FnOnce(u32) -> u32) {
        match fate {
            Fate::Sacked => self.sacked = change(self.sacked),
            Fate::Lost => self.lost = change(self.lost),
            Fate::Flying => {}
        }
    }

    fn cut(&mut self, at: usize, seq: Seq) {
        let stretch = &mut self.stretches[at];
        let behind = Stretch { start: seq, ..*stretch };
        stretch.end = seq;
        self.stretches.insert(at + 1, behind);
    }

    /// Makes a sacked stretch one with the one before: when they were sent does not
    /// matter any more. Returns whether it did.
    fn join(&mut self, at: usize) -> bool {
        let sacked = |stretch: &Stretch| stretch.fate == Fate::Sacked;
        let is_sacked = |at| self.stretches.get(at).is_some_and(sacked);
        if at == 0 || !is_sacked(at) || !is_sacked(at - 1) {
            return false;
        }
        self.stretches[at - 1].end = self.stretches[at].end;
        self.stretches.remove(at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 100;

    /// Of what flies from 0 on, what is left after the blocks were told of: where it
    /// begins, where it ends, and whether it arrived.
    fn told(ends: &[u32], blocks: &[(u32, u32)]) -> Vec<(u32, u32, bool)> {
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
        let sacked = |stretch: &&Stretch| stretch.fate == Fate::Sacked;
        let bytes: u32 = board.iter().filter(sacked).map(Stretch::len).sum();
        assert_eq!((board.sacked(), delivered.bytes), (bytes, bytes));
        let of = |stretch: &Stretch| (stretch.start.0, stretch.end.0, sacked(&stretch));
        board.iter().map(of).collect()
    }

    #[test]
    fn whole_segments_are_told_of_as_they_are() {
        let cut = [(0, 100, false), (100, 300, true), (300, 350, false)];
        assert_eq!(told(&[350], &[(100, 300)]), cut, "the last is short");
        assert_eq!(told(&[350], &[(300, 350)]), [(0, 300, false), (300, 350, true)]);
        assert_eq!(told(&[100, 110, 400], &[(100, 110)])[1], (100, 110, true));
        assert_eq!(told(&[100, 110, 400], &[(100, 310)])[1], (100, 310, true));
    }

    #[test]
    fn less_than_a_segment_is_not_told_of() {
        let whole = [(0, 1000, false)];
        for block in [(300, 301), (300, 399), (1, 101), (99, 199), (0, 99)] {
            assert_eq!(told(&[1000], &[block]), whole, "{block:?}");
        }
        let inward = [(0, 100, false), (100, 300, true), (300, 1000, false)];
        assert_eq!(told(&[1000], &[(1, 300)]), inward);
    }

    #[test]
    fn what_arrived_is_one_from_whichever_side_it_grows() {
        let grown = [(0, 200, false), (200, 500, true), (500, 1000, false)];
        assert_eq!(told(&[1000], &[(200, 300), (300, 400), (400, 500)]), grown);
        assert_eq!(told(&[1000], &[(400, 500), (300, 400), (200, 300)]), grown);
        assert_eq!(told(&[1000], &[(200, 300), (400, 500), (300, 400)]), grown);
        assert_eq!(told(&[1000], &[(200, 500), (250, 450), (200, 500)]), grown);
    }

    #[test]
    fn stretches_are_bounded_and_what_cuts_none_still_counts() {
        let all = 300 * MOST as u32;
        let blocks: Vec<_> = (0..all / 200).map(|at| (200 * at, 200 * at + 100)).collect();
        let cut = told(&[all], &blocks);
        assert!((MOST..MOST + 2).contains(&cut.len()), "{}", cut.len());
        let blocks = [&blocks[..], &[(100, all)]].concat();
        assert_eq!(told(&[all], &blocks).last(), Some(&(0, all, true)));
    }
}
