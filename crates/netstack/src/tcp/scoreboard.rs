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

use super::seq::Seq;
use crate::time::Time;

/// How many places an idle connection keeps.
const PLACES_KEPT: usize = 8;

/// A stretch of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first sequence number.
    pub start: Seq,
    /// Behind the last.
    pub end: Seq,
    /// When it was sent last.
    pub sent: Time,
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
    fn len(&self) -> u32 {
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
    pub fn sent(&mut self, start: Seq, end: Seq, now: Time) {
        if let Some(last) = self.stretches.back_mut()
            && last.sent == now
            && !last.again
            && last.fate == Fate::Flying
        {
            last.end = end;
            return;
        }
        let fate = Fate::Flying;
        self.stretches.push_back(Stretch { start, end, sent: now, again: false, fate });
    }

    /// Notes that bytes were sent again.
    pub fn sent_again(&mut self, start: Seq, end: Seq, now: Time) {
        self.change(start, end, |stretch| {
            if stretch.fate != Fate::Sacked {
                stretch.fate = Fate::Flying;
                stretch.again = true;
                stretch.sent = now;
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

    /// The bytes from `start` to `end` arrived.
    pub fn sack(&mut self, start: Seq, end: Seq, delivered: &mut Delivered) {
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

    /// Has `is_lost` say of what is flying whether it is lost.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&Stretch) -> bool) {
        for stretch in &mut self.stretches {
            if stretch.fate == Fate::Flying && is_lost(stretch) {
                stretch.fate = Fate::Lost;
                self.lost += stretch.len();
            }
        }
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
        if at == 0 || !sacked(&self.stretches[at]) || !sacked(&self.stretches[at - 1]) {
            return false;
        }
        self.stretches[at - 1].end = self.stretches[at].end;
        self.stretches.remove(at);
        true
    }
}
