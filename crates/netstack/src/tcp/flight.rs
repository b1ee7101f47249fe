//! Data in flight, and loss detection: the scoreboard, RACK, the congestion control, and the start
//! and end of recovery (RFC 5681, 6675, 8985).

use super::{
    congestion_control::{AckEvent, CongestionControl, Control, Loss, SendEvent, Settings},
    delivery::{Delivery, Snapshot},
    options::Block,
    pacer::Pacer,
    rack::Rack,
    rtt::Rtt,
    scoreboard::{Delivered, Scoreboard, SentRange},
    seq::Seq,
};
use crate::time::Time;

/// Duplicate acknowledgements that indicate a loss if the receiver does not support selective ones
/// (RFC 5681 section 3.2).
const DUPLICATES: u32 = 3;
/// The most bytes of TCP options (RFC 9293 section 3.1).
const OPTIONS: u32 = 40;

#[derive(Debug)]
pub(super) struct Flight {
    pub board: Scoreboard,
    pub rtt: Rtt,
    control: Control,
    delivery: Delivery,
    pacer: Pacer,
    rack: Rack,
    /// End of the present recovery: it ends when this is acknowledged.
    recovery: Option<Seq>,
    settings: Settings,
    /// Bytes that were retransmitted in the last recovery and not reported as duplicates.
    again: Option<u32>,
    /// Consecutive duplicate acknowledgements.
    duplicates: u32,
    /// Time at which data was sent last.
    sent: Time,
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack<'a> {
    /// All data before it has arrived.
    pub una: Seq,
    /// Whether it acknowledges new data.
    pub advances: bool,
    /// Whether it is a duplicate acknowledgement by RFC 5681.
    pub repeats: bool,
    /// Whether the receiver supports selective acknowledgements.
    pub selective: bool,
    /// The selective acknowledgements, limited to sent data.
    pub blocks: &'a [Block],
    /// Number of bytes that it reports as duplicates (RFC 2883).
    pub duplicate: u32,
    /// The next sequence number to send for the first time.
    pub next: Seq,
}

impl Flight {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            board: Scoreboard::default(),
            rtt: Rtt::default(),
            control: Control::new(settings),
            delivery: Delivery::default(),
            pacer: Pacer::new(),
            rack: Rack::default(),
            recovery: None,
            settings,
            again: None,
            duplicates: 0,
            sent: Time::default(),
        }
    }

    /// Clears the state.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.settings);
    }

    /// The congestion window in bytes.
    pub(super) fn window(&self) -> u32 {
        self.control.window()
    }

    /// The most bytes that are sent at once.
    pub(super) fn quantum(&self) -> u32 {
        self.control.pace().map_or(u32::MAX, |pace| pace.quantum)
    }

    /// Segment payload in bytes.
    pub(super) fn mss(&self) -> u32 {
        self.settings.mss
    }

    /// The least payload of a segment that is not the last, in bytes: with all options.
    fn least(&self) -> u32 {
        self.mss().saturating_sub(OPTIONS).max(1)
    }

    /// Bytes that may still be sent.
    pub(super) fn room(&self) -> u32 {
        self.window().saturating_sub(self.board.in_flight())
    }

    /// Whether recovery is in progress.
    pub(super) fn recovers(&self) -> bool {
        self.recovery.is_some()
    }

    /// Time at which losses must be detected again.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.rack.deadline()
    }

    /// End of the delay by pacing; `None` if data may be sent.
    pub(super) fn delayed_until(&self) -> Option<Time> {
        self.pacer.delayed_until()
    }

    /// Ends the delay by pacing if its time is over.
    pub(super) fn release(&mut self, now: Time) {
        self.pacer.release(now);
    }

    /// Changes the segment payload.
    pub(super) fn set_mss(&mut self, mss: u32) {
        self.settings.mss = mss;
        self.control.set_mss(mss);
    }

    /// Sets the negotiated parameters before the first data. Without selective acknowledgements the
    /// delivery rate cannot be measured.
    pub(super) fn begin(&mut self, mss: u32, selective: bool) {
        self.settings.mss = mss;
        if !selective {
            self.settings.algorithm = CongestionControl::Cubic;
        }
        self.control = Control::new(self.settings);
    }

    /// Records that nothing more is sent for now. All data was sent, or the congestion window or
    /// the receiver's window is full.
    pub(super) fn note_idle(&mut self, is_all_sent: bool) {
        if is_all_sent || self.pacer.delayed_until().is_none() {
            self.pacer.note_idle(is_all_sent);
        }
    }

    /// Records that the congestion window was the only limit.
    pub(super) fn note_limited(&mut self) {
        self.control.note_limited();
    }

    /// Records that all data was sent. If more would have been allowed, samples are
    /// application-limited.
    pub(super) fn note_all_sent(&mut self) {
        if self.room() > 0 && self.board.lost() == 0 {
            self.delivery.note_limited(self.board.in_flight());
        }
    }

    /// Records new data that was sent.
    pub(super) fn note_sent(&mut self, start: Seq, end: Seq, now: Time) {
        let then = self.depart(end.since(start), now);
        self.board.sent(start, end, then, now);
    }

    /// Records retransmitted data.
    pub(super) fn note_sent_again(&mut self, start: Seq, end: Seq, now: Time) {
        let bytes = end.since(start);
        let then = self.depart(bytes, now);
        self.board.sent_again(start, end, then, now);
        if let Some(again) = &mut self.again {
            *again = again.saturating_add(bytes);
        }
    }

    fn depart(&mut self, bytes: u32, now: Time) -> Snapshot {
        let (in_flight, first) = (self.board.in_flight() + bytes, self.board.is_empty());
        let then = self.delivery.snapshot(in_flight, first, now);
        self.control.handle_send(&SendEvent {
            bytes,
            first,
            idle: now.since(self.sent) > self.rtt.timeout(0),
            limited: then.limited,
            smoothed: self.rtt.smoothed(),
            now,
        });
        if let Some(pace) = self.control.pace() {
            self.pacer.note_sent(bytes, pace.rate, now);
        }
        self.sent = now;
        then
    }

    /// Handles an acknowledgement. Returns the number of newly acknowledged bytes.
    pub(super) fn handle_ack(&mut self, ack: Ack<'_>, now: Time) -> u32 {
        let prior_in_flight = self.board.in_flight();
        let mut delivered = Delivered::default();
        self.board.acknowledge(ack.una, &mut delivered);
        for block in ack.blocks {
            self.board.sack(*block, self.least(), &mut delivered);
        }
        if let Some((first, last)) = delivered.once {
            self.rtt.sample(now.since(first), now.since(last));
        }
        self.delivery.note_arrived(&delivered, now);
        if ack.duplicate > 0 {
            self.rack.duplicate(ack.una, ack.next);
            self.undo(ack.duplicate);
        }
        let lost = self.board.lost();
        if ack.selective {
            self.rack.delivered(&delivered, &self.rtt, now);
            self.detect(now);
        } else {
            self.count_duplicates(ack);
        }
        let more_lost = self.board.lost() > lost;
        self.leave_recovery(ack.una);
        self.enter_recovery(ack.next, prior_in_flight);
        self.report_ack(&delivered, prior_in_flight, ack.advances && !more_lost, now);
        delivered.bytes
    }

    /// Detects losses at the time of the deadline.
    pub(super) fn handle_deadline(&mut self, next: Seq, now: Time) {
        self.detect(now);
        let prior_in_flight = self.board.in_flight();
        self.enter_recovery(next, prior_in_flight);
        self.report_ack(&Delivered::default(), prior_in_flight, false, now);
    }

    /// Handles a retransmission timeout: all data is considered lost (RFC 5681 section 3.1, RFC
    /// 6298 section 5). `first` is set for the first one in a row.
    pub(super) fn handle_timeout(&mut self, next: Seq, first: bool, now: Time) {
        let Self { board, delivery, control, .. } = self;
        board.mark_lost(|range| {
            note_lost(control, delivery, range, now);
            true
        });
        if board.is_reneged() {
            board.lose_sacked();
        }
        self.rack.stop();
        self.again = None;
        self.control.handle_timeout(first);
        self.recovery = Some(next);
    }

    /// Handles a tail loss that a probe has repaired. It counts as congestion (RFC 8985 section
    /// 7.4).
    pub(super) fn note_repaired(&mut self) {
        if !self.recovers() {
            self.control.note_repaired(self.delivery.arrived());
        }
    }

    fn detect(&mut self, now: Time) {
        let recovers = self.recovers();
        let wait = self.rack.wait(&self.rtt, recovers, self.board.sacked(), self.mss());
        let Self { rack, board, delivery, control, .. } = self;
        rack.detect(board, wait, now, |range| note_lost(control, delivery, range, now));
    }

    /// Undoes a recovery if all its retransmissions were needless, because the data was late and
    /// not lost (RFC 3708, as in Linux).
    fn undo(&mut self, duplicate: u32) {
        let Some(again) = &mut self.again else { return };
        *again = again.saturating_sub(duplicate);
        if *again == 0 && self.board.lost() == 0 {
            self.control.undo();
            self.again = None;
            self.recovery = None;
        }
    }

    /// RFC 6582, for receivers without selective acknowledgements.
    fn count_duplicates(&mut self, ack: Ack<'_>) {
        if ack.advances {
            self.duplicates = 0;
            if self.recovers() && self.board.lost() == 0 {
                self.board.lose_first(self.mss());
            }
        } else if ack.repeats {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && !self.recovers() {
                self.board.lose_first(self.mss());
            }
        }
    }

    fn enter_recovery(&mut self, next: Seq, prior_in_flight: u32) {
        if self.board.lost() == 0 || self.recovers() {
            return;
        }
        self.again = Some(0);
        self.control.enter_recovery(prior_in_flight);
        self.recovery = Some(next);
    }

    fn leave_recovery(&mut self, una: Seq) {
        if self.recovery.is_none_or(|until| una.before(until)) {
            return;
        }
        self.control.leave_recovery();
        self.recovery = None;
        self.duplicates = 0;
        self.rack.recovered();
    }

    /// Passes the acknowledgement to the congestion control.
    fn report_ack(&mut self, delivered: &Delivered, prior_in_flight: u32, safe: bool, now: Time) {
        let newest = delivered.newest.as_ref();
        let event = AckEvent {
            bytes: delivered.bytes,
            sample: newest.map(|newest| self.delivery.sample(newest, self.rtt.min())),
            rtt: delivered.once.map(|(_, last)| now.since(last)),
            smoothed: self.rtt.smoothed(),
            prior_in_flight,
            in_flight: self.board.in_flight(),
            safe,
            now,
        };
        self.control.handle_ack(&event, &mut self.delivery);
    }
}

fn note_lost(control: &mut Control, delivery: &mut Delivery, range: &SentRange, now: Time) {
    delivery.note_lost(range.len());
    let since = delivery.lost_since(&range.then);
    control.note_lost(&Loss { range, since, arrived: delivery.arrived(), now });
}
