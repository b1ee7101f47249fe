//! Handles received segments, in the order of RFC 9293 section 3.10.7.

use std::time::Duration;

use super::{
    Acknowledge, Connection, DEFAULT_MSS, Failure, LINGER, MIN_MSS, ORPHANED, Seq, State,
    receiver::Arrival,
    segment::{HANDSHAKE, Header, Segment, flags},
    sender::Acked,
};
use crate::time::Time;

/// Time for which an acknowledgement may wait for data that carries it (RFC 9293 section 3.8.6.3
/// allows 500 ms; Linux has 40).
const ACK_DELAY: Duration = Duration::from_millis(40);
/// Challenges in a second (RFC 5961 section 7).
const CHALLENGES: u8 = 10;
/// Lifetime of the peer's last timestamp (RFC 7323 section 5.5).
const TIMESTAMP_AGE: Duration = Duration::from_secs(24 * 24 * 3600);
/// The longest time between a timestamp and its echo that counts as a measurement of the round
/// trip, in milliseconds.
const MAX_RTT: u32 = 10_000;

/// The action that the stack must take for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// None. The connection sends its answer.
    Handled,
    /// Answer with a reset, because the segment does not belong to the connection.
    Stray,
}

impl Connection {
    /// Handles a received segment.
    pub(crate) fn handle_segment(&mut self, now: Time, segment: &Segment<'_>) -> Verdict {
        match self.state {
            State::Closed => {}
            State::SynSent => return self.handle_syn_sent(now, segment),
            _ => return self.handle_synchronized(now, segment),
        }
        Verdict::Handled
    }

    /// Whether a SYN may replace this connection: it is in TIME-WAIT, and the SYN is newer than all
    /// its segments (RFC 9293 section 3.6.1, RFC 6191).
    pub(crate) fn can_be_replaced(&self, header: &Header) -> bool {
        let asks = header.flags & HANDSHAKE == flags::SYN;
        let recent = Seq(self.clocks.recent.0);
        let stamp = header.options.timestamps.filter(|_| self.negotiated.timestamps);
        let later = match stamp.map(|timestamps| Seq(timestamps.value)) {
            Some(stamp) if stamp != recent => stamp.after(recent),
            _ => header.seq.after(self.rx.next()),
        };
        self.state == State::TimeWait && asks && later
    }

    /// Section 3.10.7.3.
    fn handle_syn_sent(&mut self, now: Time, segment: &Segment<'_>) -> Verdict {
        let header = &segment.header;
        let acknowledges = header.has(flags::ACK);
        let acceptable = header.ack == self.tx.una();
        if acknowledges && !acceptable {
            return if header.has(flags::RST) { Verdict::Handled } else { Verdict::Stray };
        }
        if header.has(flags::RST) {
            if acknowledges {
                self.fail(Failure::Refused);
            }
            return Verdict::Handled;
        }
        if !header.has(flags::SYN) {
            return Verdict::Handled;
        }
        self.take_syn(header, now);
        if acknowledges {
            self.establish(header, now);
            self.replies.ack = Acknowledge::Now;
        } else {
            // Simultaneous open.
            self.state = State::SynReceived;
            self.replies.syn = true;
        }
        Verdict::Handled
    }

    /// Stores the parameters that a SYN offers.
    pub(super) fn take_syn(&mut self, syn: &Header, now: Time) {
        let options = &syn.options;
        let mss = options.mss.map_or(DEFAULT_MSS, u32::from).max(MIN_MSS);
        self.negotiated.mss = mss;
        self.negotiated.scales = options.window_scale.is_some();
        self.negotiated.scale = options.window_scale.unwrap_or(0);
        self.negotiated.selective = options.sack_permitted;
        self.negotiated.timestamps = options.timestamps.is_some();
        if !self.negotiated.scales {
            self.rx.forbid_scale();
        }
        if let Some(timestamps) = options.timestamps {
            self.clocks.recent = (timestamps.value, now);
        }
        self.rx.begin(syn.seq);
        self.clocks.last_ack = self.rx.next();
        self.tx.flight.begin(self.segment_limit(), self.negotiated.selective);
        // A window in a SYN is never scaled.
        self.tx.open(syn.window.into(), syn.seq);
    }

    fn establish(&mut self, header: &Header, now: Time) {
        self.state = State::Established;
        // Karn's algorithm: a repeated SYN does not measure the round trip time.
        if self.clocks.syn.is_some_and(|(_, count)| count == 0) {
            let rtt = now.since(self.clocks.started);
            self.tx.flight.rtt.sample(rtt, rtt);
            self.rx.note_rtt(rtt);
        }
        self.clocks.syn = None;
        self.replies.syn = false;
        if !header.has(flags::SYN) {
            self.tx.open(u32::from(header.window) << self.negotiated.scale, header.seq);
        }
    }

    /// Section 3.10.7.4.
    fn handle_synchronized(&mut self, now: Time, segment: &Segment<'_>) -> Verdict {
        let header = &segment.header;
        self.note_received(now);
        if !self.is_acceptable(now, segment) {
            return Verdict::Handled;
        }
        if header.has(flags::RST) {
            // RFC 5961 section 3.2.
            if header.seq == self.rx.next() {
                self.handle_reset();
            } else {
                self.challenge(now);
            }
            return Verdict::Handled;
        }
        if header.has(flags::SYN) {
            // RFC 5961 section 4.2. In a simultaneous open the acknowledgement comes with a SYN.
            if !(self.state == State::SynReceived && header.seq + 1 == self.rx.next()) {
                self.challenge(now);
                return Verdict::Handled;
            }
        }
        if !header.has(flags::ACK) {
            return Verdict::Handled;
        }
        if self.state == State::SynReceived {
            if header.ack != self.tx.una() {
                return Verdict::Stray;
            }
            let ends = self.tx.is_ending();
            self.establish(header, now);
            if ends {
                self.state = State::FinWait1;
            }
        }
        if !self.take_ack(now, segment) {
            self.challenge(now);
            return Verdict::Handled;
        }
        self.take_timestamp(now, segment);
        self.take_data(now, segment);
        Verdict::Handled
    }

    /// The first check, and PAWS (RFC 7323 section 5.3). Unacceptable segments are acknowledged, so
    /// that a peer with stale state learns the present one.
    fn is_acceptable(&mut self, now: Time, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let (next, end) = (self.rx.next(), self.rx.offered().max(self.rx.next()));
        let repeats_syn =
            self.state == State::SynReceived && header.has(flags::SYN) && header.seq + 1 == next;
        if repeats_syn && !header.has(flags::ACK) {
            // Our SYN-ACK was lost.
            self.replies.syn = true;
            return false;
        }
        let begins = header.seq.before(end) || header.seq == next;
        let acceptable = begins && !segment.end().before(next);
        let old = !header.has(flags::RST) && self.is_old(now, header);
        if repeats_syn || acceptable && !old {
            return true;
        }
        if !header.has(flags::RST) {
            if self.negotiated.selective {
                self.rx.note_duplicate(header.seq, segment.end());
            }
            if self.state == State::TimeWait && header.has(flags::FIN) {
                self.enter_time_wait(now);
            }
            self.replies.ack = Acknowledge::Now;
        }
        false
    }

    fn is_old(&self, now: Time, header: &Header) -> bool {
        let (recent, since) = self.clocks.recent;
        let timestamps = header.options.timestamps.filter(|_| self.negotiated.timestamps);
        timestamps.is_some_and(|timestamps| Seq(timestamps.value).before(Seq(recent)))
            && now.since(since) < TIMESTAMP_AGE
    }

    fn take_timestamp(&mut self, now: Time, segment: &Segment<'_>) {
        let Some(timestamps) = segment.header.options.timestamps else { return };
        if !self.negotiated.timestamps {
            return;
        }
        // RFC 7323 section 4.3.
        if !segment.header.seq.after(self.clocks.last_ack) {
            self.clocks.recent = (timestamps.value, now);
        }
        let took = self.timestamp(now).wrapping_sub(timestamps.echo);
        if segment.payload.len() > 0 && timestamps.echo != 0 && took < MAX_RTT {
            self.rx.note_rtt(Duration::from_millis(took.max(1).into()));
        }
    }

    fn handle_reset(&mut self) {
        match self.state {
            State::SynReceived => self.fail(Failure::Refused),
            State::Closing | State::LastAck => self.enter_closed(),
            // RFC 1337: a reset must not end TIME-WAIT early.
            State::TimeWait => {}
            _ => self.fail(Failure::Reset),
        }
    }

    /// Answers a possibly forged segment with an acknowledgement (RFC 5961).
    fn challenge(&mut self, now: Time) {
        let (since, count) = &mut self.replies.challenges;
        if now.since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        if *count < CHALLENGES {
            *count += 1;
            self.replies.ack = Acknowledge::Now;
        }
    }

    /// Handles the acknowledgement. Returns whether it is valid (RFC 5961 section 5.2).
    fn take_ack(&mut self, now: Time, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let oldest = self.tx.una() - self.tx.max_window();
        if header.ack.after(self.tx.next()) || header.ack.before(oldest) {
            return false;
        }
        let scale = if header.has(flags::SYN) { 0 } else { self.negotiated.scale };
        let acked = Acked {
            seq: header.seq,
            ack: header.ack,
            window: u32::from(header.window) << scale,
            bare: segment.len() == 0,
            selective: self.negotiated.selective,
            blocks: &header.options.sack,
        };
        let advances = self.tx.handle_ack(acked, now);
        if advances && self.is_orphan {
            self.clocks.end = Some(now + LINGER);
        }
        if self.tx.is_finished() {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    self.clocks.end = self.is_orphan.then_some(now + ORPHANED);
                }
                State::Closing => self.enter_time_wait(now),
                State::LastAck => self.enter_closed(),
                _ => {}
            }
        }
        true
    }

    /// Handles data and FIN.
    fn take_data(&mut self, now: Time, segment: &Segment<'_>) {
        let listens = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if segment.len() == 0 || self.state == State::Closed {
            return;
        }
        if !listens {
            if self.state == State::TimeWait && segment.header.has(flags::FIN) {
                self.enter_time_wait(now);
            }
            self.replies.ack = Acknowledge::Now;
            return;
        }
        let header = &segment.header;
        let seq = header.seq + u32::from(header.has(flags::SYN));
        let end = seq + segment.payload.len() as u32;
        if self.is_orphan && end.after(self.rx.next()) {
            // RFC 9293 section 3.6.1: the application will not read it.
            self.abort();
            return;
        }
        let arrival = self.rx.receive(seq, &segment.payload);
        if header.has(flags::FIN) && !end.after(self.rx.offered()) {
            self.rx.finish(end);
            self.replies.ack = Acknowledge::Now;
        }
        match arrival {
            Arrival::Nothing => {}
            Arrival::InOrder => self.acknowledge_later(segment.payload.len() as u32, now),
            Arrival::AckNow | Arrival::Refused => self.replies.ack = Acknowledge::Now,
        }
        if self.rx.has_ended() {
            self.handle_end(now);
        }
    }

    /// Acknowledges every second segment at once, and a single one with the next segment that is
    /// sent (RFC 9293 section 3.8.6.3).
    fn acknowledge_later(&mut self, len: u32, now: Time) {
        let full = 2 * self.full_segment();
        let replies = &mut self.replies;
        replies.unacknowledged = replies.unacknowledged.saturating_add(len);
        let quick = replies.quick > 0;
        replies.quick = replies.quick.saturating_sub(1);
        if quick || replies.unacknowledged >= full {
            replies.ack = Acknowledge::Now;
        } else if replies.ack == Acknowledge::Nothing {
            replies.ack = Acknowledge::Later(now + ACK_DELAY);
        }
    }

    /// Handles that the peer's FIN and all data before it have arrived.
    fn handle_end(&mut self, now: Time) {
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
    }
}
