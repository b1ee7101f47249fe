//! The sent stream: buffers written data, and decides on the next transmission.
//!
//! ```text
//!   base = una            next                  end
//!     |   in flight        |   waits             | FIN, at the end of the stream
//! ```

use std::time::Duration;

use super::{
    congestion_control::Settings,
    flight::{Ack, Flight},
    options::Block,
    ring::Ring,
    seq::Seq,
};
use crate::{budget::Budget, time::Time};

/// The longest delay of an acknowledgement for a single segment (RFC 8985 section 7.2,
/// `TLP.max_ack_delay`).
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);
/// Time added to two round trip times before a probe: one tick of a clock.
const PROBE_SLACK: Duration = Duration::from_millis(2);
/// The smallest capacity for writes: several super-packets, so that one can be written while others
/// are sent.
const MIN_ROOM: usize = 256 * 1024;
/// The capacity for writes while memory is short.
const SHORT_ROOM: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Sender {
    ring: Ring,
    /// Sequence number of the first byte in the ring.
    base: Seq,
    una: Seq,
    next: Seq,
    pub flight: Flight,
    peer: Window,
    /// Whether FIN follows the data in the ring.
    ends: bool,
    timer: Option<(Time, Timer)>,
    due: Due,
    /// The last tail probe: the sequence number after it, and whether it was a retransmission.
    probe: Option<(Seq, bool)>,
    /// Consecutive timeouts. Each makes the next one longer.
    backoff: u32,
    /// Consecutive timeouts without any answer.
    unanswered: u32,
}

/// The receiver's window.
#[derive(Debug, Default)]
struct Window {
    size: u32,
    /// The largest window in the past.
    max: u32,
    /// The segment with the last window: its sequence number and acknowledgement (RFC 9293 section
    /// 3.10.7.4, SND.WL1 and SND.WL2).
    by: (Seq, Seq),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Retransmit,
    TailProbe,
    /// The window is closed, or too small for a segment.
    Persist,
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    tail_probe: bool,
    window_probe: bool,
    /// Send as much as fits, even if it is little.
    anything: bool,
}

/// The next transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Send {
    /// New data.
    New(Seq, Seq),
    /// A retransmission.
    Again(Seq, Seq),
    /// A segment without data that requests an acknowledgement.
    WindowProbe,
}

/// Limits for the size of a transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest payload of a segment, in bytes.
    pub segment: u32,
    /// The largest payload of one transmission: of a super-packet, or of a segment.
    pub most: u32,
    /// Whether short segments wait for data in flight (RFC 9293 section 3.7.4).
    pub nagle: bool,
}

impl Limits {
    /// Limits a transmission to `most` bytes, but at least one segment.
    fn within(self, most: u32) -> Self {
        let whole = (most / self.segment * self.segment).max(self.segment);
        Self { most: self.most.min(whole), ..self }
    }
}

/// The fields of a received acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked<'a> {
    /// Sequence number of the segment.
    pub seq: Seq,
    /// The next byte that the receiver expects.
    pub ack: Seq,
    /// The receiver's window in bytes.
    pub window: u32,
    /// Whether the segment carries no data.
    pub bare: bool,
    /// Whether selective acknowledgements were negotiated.
    pub selective: bool,
    /// The selective acknowledgements.
    pub blocks: &'a [Block],
}

impl Sender {
    pub(super) fn new(initial: Seq, settings: Settings, budget: Budget) -> Self {
        Self {
            ring: Ring::new(budget),
            base: initial + 1,
            una: initial + 1,
            next: initial + 1,
            flight: Flight::new(settings),
            peer: Window::default(),
            ends: false,
            timer: None,
            due: Due::default(),
            probe: None,
            backoff: 0,
            unanswered: 0,
        }
    }

    /// The oldest unacknowledged sequence number.
    pub(super) fn una(&self) -> Seq {
        self.una
    }

    /// The next sequence number to send.
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// The sequence number after the last written byte.
    fn data_end(&self) -> Seq {
        self.base + self.ring.len() as u32
    }

    /// The sequence number after data and FIN.
    fn end(&self) -> Seq {
        self.data_end() + u32::from(self.ends)
    }

    /// Whether FIN was acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.ends && self.una == self.end()
    }

    /// The largest window that the receiver has announced.
    pub(super) fn max_window(&self) -> u32 {
        self.peer.max
    }

    /// Bytes that may be written. The buffer holds at most `most` bytes.
    pub(super) fn room(&self, most: usize) -> usize {
        if self.ends {
            return 0;
        }
        // Twice the window: one half is in flight while the other one is written.
        let wanted = (2 * self.flight.window() as usize).max(MIN_ROOM).min(most);
        let short = self.ring.budget().is_short();
        let wanted = if short { wanted.min(SHORT_ROOM) } else { wanted };
        wanted.saturating_sub(self.ring.len()).min(self.ring.room())
    }

    /// Whether all written data was acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Writes as many bytes as fit.
    pub(super) fn write(&mut self, bytes: &[u8], most: usize) -> usize {
        let room = self.room(most).min(bytes.len());
        self.ring.push(&bytes[..room])
    }

    /// Ends the stream with FIN.
    pub(super) fn finish(&mut self) {
        self.ends = true;
    }

    /// Drops all data.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.flight.clear();
        self.timer = None;
    }

    /// Whether the stream has been ended.
    pub(super) fn is_ending(&self) -> bool {
        self.ends
    }

    /// Sets the receiver's initial window.
    pub(super) fn open(&mut self, window: u32, by: Seq) {
        self.peer = Window { size: window, max: window, by: (by, self.una) };
    }

    /// Copies the data of a range to `to`. Returns its length, whether it includes the last written
    /// byte, and whether it includes FIN.
    pub(super) fn read(&self, (start, end): (Seq, Seq), to: &mut [u8]) -> (usize, bool, bool) {
        let data_end = end.min(self.data_end());
        let len = data_end.since(start) as usize;
        self.ring.read(start.since(self.base) as usize, &mut to[..len]);
        (len, len > 0 && data_end == self.data_end(), end.after(data_end))
    }

    /// Decides on the next transmission.
    pub(super) fn plan(&self, limits: Limits) -> Option<Send> {
        if self.due.window_probe {
            return Some(Send::WindowProbe);
        }
        if self.due.tail_probe {
            return self.plan_tail_probe(limits);
        }
        if self.flight.delayed_until().is_some() {
            return None;
        }
        let limits = limits.within(self.flight.quantum());
        if let Some(lost) = self.flight.board.first_lost() {
            let room = self.flight.room();
            let len = lost.end.since(lost.start);
            // A part of the range must consist of whole segments.
            let len = if len <= room { len } else { room / limits.segment * limits.segment };
            let end = lost.start + len.min(limits.most);
            return (len > 0).then_some(Send::Again(lost.start, end));
        }
        self.plan_new(limits)
    }

    fn plan_new(&self, limits: Limits) -> Option<Send> {
        let waiting = self.end().since(self.next);
        if waiting == 0 {
            return None;
        }
        let in_flight = self.flight.board.in_flight();
        let len = waiting.min(self.window_left()).min(self.flight.room()).min(limits.most);
        if len == waiting {
            let nagle = limits.nagle && len < limits.segment && in_flight > 0 && !self.ends;
            return (!nagle).then_some(Send::New(self.next, self.next + len));
        }
        let whole = len / limits.segment * limits.segment;
        // A small part of much data is held back while acknowledgements arrive that will allow
        // more, so that super-packets stay large (as in Linux `tcp_tso_should_defer`).
        let usable = self.flight.window().min(self.peer.size);
        let defers = whole < limits.most && whole < usable / 4 && in_flight >= 2 * limits.segment;
        if whole > 0 && !defers {
            return Some(Send::New(self.next, self.next + whole));
        }
        // Avoids the silly window syndrome (RFC 9293 section 3.8.6.2.1).
        let by_window = self.window_left() <= self.flight.room();
        let enough = len >= self.peer.max / 2 || self.due.anything;
        (whole == 0 && len > 0 && by_window && enough)
            .then_some(Send::New(self.next, self.next + len))
    }

    /// A tail probe: new data if there is any, else the last segment again (RFC 8985 section 7.3).
    fn plan_tail_probe(&self, limits: Limits) -> Option<Send> {
        let new = self.end().since(self.next).min(self.window_left()).min(limits.segment);
        if new > 0 {
            return Some(Send::New(self.next, self.next + new));
        }
        let last = self.flight.board.last()?;
        let len = last.end.since(last.start).min(limits.segment);
        Some(Send::Again(last.end - len, last.end))
    }

    fn window_left(&self) -> u32 {
        (self.una + self.peer.size).since(self.next)
    }

    /// Whether all data and FIN were acknowledged.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        self.una == self.end()
    }

    /// Whether data waits, but neither an acknowledgement nor a timer would continue the
    /// transmission.
    pub(super) fn is_stuck(&self) -> bool {
        let waits = self.end() != self.next && self.flight.delayed_until().is_none();
        waits && self.timer.is_none() && self.flight.board.is_empty()
    }

    /// Records that nothing more is sent for now, and the reason.
    pub(super) fn note_idle(&mut self, now: Time) {
        let waiting = self.end().since(self.next);
        self.flight.note_idle(waiting == 0);
        if waiting == 0 {
            self.flight.note_all_sent();
        } else if self.flight.delayed_until().is_none()
            && self.flight.room() < self.window_left().min(waiting)
        {
            self.flight.note_limited();
        }
        if self.is_stuck() {
            self.timer = Some((now + self.flight.rtt.timeout(self.backoff), Timer::Persist));
        }
    }

    /// Records a transmission.
    pub(super) fn note_sent(&mut self, send: Send, selective: bool, now: Time) {
        let probes = std::mem::take(&mut self.due.tail_probe);
        match send {
            Send::WindowProbe => {
                self.due.window_probe = false;
                return;
            }
            Send::New(start, end) => {
                self.next = end;
                self.due.anything = false;
                self.flight.note_sent(start, end, now);
            }
            Send::Again(start, end) => self.flight.note_sent_again(start, end, now),
        }
        if probes {
            self.probe = Some((self.next, matches!(send, Send::Again(..))));
        }
        let running = matches!(self.timer, Some((_, Timer::Retransmit | Timer::TailProbe)));
        if !running || matches!(send, Send::New(..)) {
            self.rearm(selective, now);
        }
    }

    /// Sets the timer for data in flight (RFC 6298 section 5, RFC 8985 section 7.2).
    fn rearm(&mut self, selective: bool, now: Time) {
        if self.flight.board.is_empty() {
            self.timer = None;
            return;
        }
        let timeout = self.flight.rtt.timeout(self.backoff);
        let probes = selective
            && self.backoff == 0
            && self.probe.is_none()
            && !self.flight.recovers()
            && self.flight.board.sacked() == 0;
        let smoothed = self.flight.rtt.smoothed().filter(|_| probes);
        self.timer = Some(match smoothed {
            Some(smoothed) => {
                let is_single = self.flight.board.in_flight() <= self.flight.mss();
                let slack = if is_single { MAX_ACK_DELAY } else { PROBE_SLACK };
                let wait = (2 * smoothed + slack).min(timeout);
                (now + wait, Timer::TailProbe)
            }
            None => (now + timeout, Timer::Retransmit),
        });
    }

    /// Handles an acknowledgement. Removes acknowledged data. Returns whether it covers new data.
    pub(super) fn handle_ack(&mut self, acked: Acked<'_>, now: Time) -> bool {
        if self.end() == self.next {
            self.flight.note_all_sent();
        }
        let advances = acked.ack.after(self.una);
        let window = self.peer.size;
        self.take_window(&acked);
        let changed = self.peer.size != window;
        let blocks = self.blocks(&acked);
        let duplicate = duplicate(&acked, self.una);
        let repeats = !advances && acked.bare && !changed && acked.ack == self.una;
        self.una = self.una.max(acked.ack);
        let consumed = self.una.min(self.data_end()).since(self.base);
        self.ring.consume(consumed as usize);
        self.base = self.base + consumed;
        self.unanswered = 0;
        if advances || changed {
            self.backoff = 0;
        }
        let ack = Ack {
            una: self.una,
            advances,
            repeats,
            selective: acked.selective,
            blocks: &blocks,
            duplicate,
            next: self.next,
        };
        let delivered = self.flight.handle_ack(ack, now);
        self.settle_probe(&acked, duplicate, repeats);
        let persists = matches!(self.timer, Some((_, Timer::Persist)));
        if advances || delivered > 0 || persists && changed {
            self.rearm(acked.selective, now);
        }
        advances
    }

    /// The valid blocks of data in flight.
    fn blocks(&self, acked: &Acked<'_>) -> arrayvec::ArrayVec<Block, 4> {
        let sane = |(start, end): &&Block| {
            start.before(*end) && start.after(acked.ack) && !end.after(self.next)
        };
        let selective = acked.blocks.iter().filter(|_| acked.selective);
        selective.filter(sane).take(4).copied().collect()
    }

    fn take_window(&mut self, acked: &Acked<'_>) {
        let (seq, ack) = self.peer.by;
        let newer = seq.before(acked.seq) || seq == acked.seq && !acked.ack.before(ack);
        if newer && !acked.ack.before(self.una) {
            self.peer.size = acked.window;
            self.peer.max = self.peer.max.max(acked.window);
            self.peer.by = (acked.seq, acked.ack);
        }
    }

    /// RFC 8985 section 7.4.2.
    fn settle_probe(&mut self, acked: &Acked<'_>, duplicate: u32, repeats: bool) {
        let Some((end, again)) = self.probe else { return };
        let repaired = again && duplicate == 0 && acked.ack.after(end);
        if repaired {
            self.flight.note_repaired();
        }
        let settled = !acked.ack.before(end) && (!again || duplicate > 0 || repeats);
        if repaired || settled {
            self.probe = None;
        }
    }

    /// Time of the next timer.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timer.map(|(due, _)| due);
        let waits = self.end() != self.next || self.flight.board.lost() > 0;
        let held = self.flight.delayed_until().filter(|_| waits);
        timer.into_iter().chain(held).chain(self.flight.deadline()).min()
    }

    /// Handles the timers that are due. Returns the number of consecutive timeouts without an
    /// answer.
    pub(super) fn handle_timeout(&mut self, selective: bool, now: Time) -> u32 {
        self.flight.release(now);
        if self.flight.deadline().is_some_and(|due| due <= now) {
            self.flight.handle_deadline(self.next, now);
        }
        let Some((due, timer)) = self.timer else { return self.unanswered };
        if due > now {
            return self.unanswered;
        }
        self.timer = None;
        match timer {
            Timer::TailProbe => {
                self.due.tail_probe = true;
                self.timer = Some((now + self.flight.rtt.timeout(0), Timer::Retransmit));
            }
            Timer::Retransmit => {
                self.flight.handle_timeout(self.next, self.backoff == 0, now);
                self.probe = None;
                self.backoff += 1;
                self.unanswered += 1;
                self.rearm(selective, now);
            }
            Timer::Persist => {
                self.backoff += 1;
                self.unanswered += 1;
                self.due.window_probe = self.window_left() == 0;
                self.due.anything = !self.due.window_probe;
                self.timer = Some((now + self.flight.rtt.timeout(self.backoff), Timer::Persist));
            }
        }
        self.unanswered
    }
}

/// Number of bytes that the first block reports as duplicates (RFC 2883 section 4).
fn duplicate(acked: &Acked<'_>, una: Seq) -> u32 {
    let [first, rest @ ..] = acked.blocks else { return 0 };
    let below = !first.1.after(acked.ack.max(una));
    let inside =
        rest.first().is_some_and(|(start, end)| !first.0.before(*start) && !first.1.after(*end));
    if acked.selective && (below || inside) { first.1.since(first.0) } else { 0 }
}
