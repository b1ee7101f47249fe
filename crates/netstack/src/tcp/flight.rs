//! How much may be in the network, and what of it is lost: the scoreboard, RACK, the
//! algorithm that sets the window, and when recovery begins and ends (RFC 5681, 6675,
//! 8985).

use super::{
    control::{CongestionControl, Control, Departure, Loss, News, Settings},
    delivery::{Delivery, Snapshot},
    options::Block,
    pacer::Pacer,
    rack::Rack,
    rtt::Rtt,
    scoreboard::{Delivered, Scoreboard, Stretch},
    seq::Seq,
};
use crate::time::Time;

/// Acknowledgements of the same byte that say that the next is lost, where the
/// receiver has no selective ones (RFC 5681 section 3.2).
const DUPLICATES: u32 = 3;
/// Bytes of options that a segment has at most (RFC 9293 section 3.1).
const OPTIONS: u32 = 40;

#[derive(Debug)]
pub struct Flight {
    pub board: Scoreboard,
    pub rtt: Rtt,
    control: Control,
    delivery: Delivery,
    pacer: Pacer,
    rack: Rack,
    /// Until this is acknowledged, what is lost is sent again.
    recovery: Option<Seq>,
    settings: Settings,
    /// Of the last recovery, how many bytes were sent again in it that were not told to be
    /// needless.
    again: Option<u32>,
    /// Acknowledgements of the same byte in a row.
    duplicates: u32,
    /// When something was sent last.
    sent: Time,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Everything before it arrived.
    pub una: Seq,
    /// Whether that is news.
    pub advances: bool,
    /// Whether it is one of RFC 5681's duplicates.
    pub repeats: bool,
    /// Whether the receiver has selective acknowledgements.
    pub selective: bool,
    /// Those, of what was sent.
    pub blocks: &'a [Block],
    /// Of how many bytes it tells that they arrived twice (RFC 2883).
    pub duplicate: u32,
    /// The next byte to be sent for the first time.
    pub next: Seq,
}

impl Flight {
    pub fn new(settings: Settings) -> Self {
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

    /// Forgets what was sent.
    pub fn clear(&mut self) {
        *self = Self::new(self.settings);
    }

    /// The congestion window in bytes.
    pub fn window(&self) -> u32 {
        self.control.window()
    }

    /// Bytes that leave at once, at most.
    pub fn quantum(&self) -> u32 {
        self.control.pace().map_or(u32::MAX, |pace| pace.quantum)
    }

    /// Payload of a segment in bytes.
    pub fn mss(&self) -> u32 {
        self.settings.mss
    }

    /// Payload of a segment that is not the last at least, in bytes: with all options.
    fn least(&self) -> u32 {
        self.mss().saturating_sub(OPTIONS).max(1)
    }

    /// How many bytes more may fly.
    pub fn room(&self) -> u32 {
        self.window().saturating_sub(self.board.flying())
    }

    /// Whether something is taken for lost.
    pub fn recovers(&self) -> bool {
        self.recovery.is_some()
    }

    /// When to look again for what is lost.
    pub fn deadline(&self) -> Option<Time> {
        self.rack.deadline()
    }

    /// Until when the pace holds back what could be sent.
    pub fn held(&self) -> Option<Time> {
        self.pacer.held()
    }

    /// Time has passed.
    pub fn release(&mut self, now: Time) {
        self.pacer.release(now);
    }

    /// Segments have another length from now on.
    pub fn set_mss(&mut self, mss: u32) {
        self.settings.mss = mss;
        self.control.set_mss(mss);
    }

    /// Before the first data: the segments that were agreed on, and whether the receiver
    /// has selective acknowledgements. Without them nobody knows what arrives at which
    /// rate.
    pub fn begin(&mut self, mss: u32, selective: bool) {
        self.settings.mss = mss;
        if !selective {
            self.settings.algorithm = CongestionControl::Cubic;
        }
        self.control = Control::new(self.settings);
    }

    /// Nothing more is sent for now: there is nothing more, or a window, ours or the
    /// receiver's, is full.
    pub fn note_rest(&mut self, is_all_sent: bool) {
        if is_all_sent || self.pacer.held().is_none() {
            self.pacer.note_rest(is_all_sent);
        }
    }

    /// The window held something back.
    pub fn note_limited(&mut self) {
        self.control.note_limited();
    }

    /// All was sent that there is; maybe more could have been.
    pub fn note_all_sent(&mut self) {
        if self.room() > 0 && self.board.lost() == 0 {
            self.delivery.note_limited(self.board.flying());
        }
    }

    /// New bytes were sent.
    pub fn note_sent(&mut self, start: Seq, end: Seq, now: Time) {
        let then = self.depart(end.since(start), now);
        self.board.sent(start, end, then, now);
    }

    /// Bytes were sent again.
    pub fn note_sent_again(&mut self, start: Seq, end: Seq, now: Time) {
        let bytes = end.since(start);
        let then = self.depart(bytes, now);
        self.board.sent_again(start, end, then, now);
        if let Some(again) = &mut self.again {
            *again = again.saturating_add(bytes);
        }
    }

    fn depart(&mut self, bytes: u32, now: Time) -> Snapshot {
        let (flying, first) = (self.board.flying() + bytes, self.board.is_empty());
        let then = self.delivery.snapshot(flying, first, now);
        self.control.note_departure(&Departure {
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

    /// Returns how many bytes arrived that were not known to.
    pub fn handle_ack(&mut self, ack: Ack<'_>, now: Time) -> u32 {
        let flew = self.board.flying();
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
        self.enter_recovery(ack.next, flew);
        self.tell(&delivered, flew, ack.advances && !more_lost, now);
        delivered.bytes
    }

    /// It is time to look for what is lost.
    pub fn handle_deadline(&mut self, next: Seq, now: Time) {
        self.detect(now);
        let flew = self.board.flying();
        self.enter_recovery(next, flew);
        self.tell(&Delivered::default(), flew, false, now);
    }

    /// Nothing was heard for a time-out: everything is taken for lost (RFC 5681
    /// section 3.1, RFC 6298 section 5). `first` says that it is the first in a row.
    pub fn handle_timeout(&mut self, next: Seq, first: bool, now: Time) {
        let Self { board, delivery, control, .. } = self;
        board.mark_lost(|stretch| {
            note_lost(control, delivery, stretch, now);
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

    /// A probe repaired a loss at the tail: that was congestion (RFC 8985 section 7.4).
    pub fn note_repaired(&mut self) {
        if !self.recovers() {
            self.control.note_repaired(self.delivery.arrived());
        }
    }

    fn detect(&mut self, now: Time) {
        let recovers = self.recovers();
        let wait = self.rack.wait(&self.rtt, recovers, self.board.sacked(), self.mss());
        let Self { rack, board, delivery, control, .. } = self;
        rack.detect(board, wait, now, |stretch| note_lost(control, delivery, stretch, now));
    }

    /// All that was sent again in a recovery was needless: nothing had been lost, only
    /// late (RFC 3708, as Linux does it).
    fn undo(&mut self, duplicate: u32) {
        let Some(again) = &mut self.again else { return };
        *again = again.saturating_sub(duplicate);
        if *again == 0 && self.board.lost() == 0 {
            self.control.undo();
            self.again = None;
            self.recovery = None;
        }
    }

    /// RFC 6582, for want of selective acknowledgements.
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

    fn enter_recovery(&mut self, next: Seq, flew: u32) {
        if self.board.lost() == 0 || self.recovers() {
            return;
        }
        self.again = Some(0);
        self.control.enter_recovery(flew);
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

    /// Has the algorithm hear the news.
    fn tell(&mut self, delivered: &Delivered, flew: u32, safe: bool, now: Time) {
        let newest = delivered.newest.as_ref();
        let news = News {
            bytes: delivered.bytes,
            sample: newest.map(|newest| self.delivery.sample(newest, self.rtt.min())),
            rtt: delivered.once.map(|(_, last)| now.since(last)),
            smoothed: self.rtt.smoothed(),
            flew,
            flying: self.board.flying(),
            safe,
            now,
        };
        self.control.handle_ack(&news, &mut self.delivery);
    }
}

fn note_lost(control: &mut Control, delivery: &mut Delivery, stretch: &Stretch, now: Time) {
    delivery.note_lost(stretch.len());
    let since = delivery.lost_since(&stretch.then);
    control.note_lost(&Loss { stretch, since, arrived: delivery.arrived(), now });
}
