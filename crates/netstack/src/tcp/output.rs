//! Writes the next segment or super-packet.

use packet::wire::tcp::HEADER_LEN;

use super::{
    Acknowledge, Connection, State,
    options::{BLOCKS_SENT, Options, Timestamps},
    segment::{Header, flags},
    sender::{Limits, Send},
};
use crate::time::Time;

/// A segment or super-packet that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// Bytes of its header.
    pub header: usize,
    /// Bytes of its payload.
    pub payload: usize,
    /// Payload of each segment except the last.
    pub segment: usize,
}

/// The next segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Reset,
    Syn,
    Stream(Send),
    /// A keepalive probe.
    Probe,
    Acknowledge,
}

impl Connection {
    /// Whether [`Connection::poll_transmit`] with the same `most` would write a segment or must
    /// update the state.
    pub(crate) fn wants_transmit(&self, most: usize) -> bool {
        self.plan(most).is_some() || self.has_stream() && self.tx.is_stuck()
    }

    /// Writes the next segment to `to`: a header with a zero checksum, then payload. The segment
    /// has at most `most` bytes; if that allows several segments, it may be a super-packet. Returns
    /// `None` if there is nothing to send.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        to: &mut [u8],
        most: usize,
    ) -> Option<Outgoing> {
        let Some(plan) = self.plan(most) else {
            if self.has_stream() {
                self.tx.note_idle(now);
            }
            return None;
        };
        let outgoing = match plan {
            Plan::Reset => self.write_reset(now, to),
            Plan::Syn => self.write_syn(now, to),
            Plan::Acknowledge => self.write_segment(now, to, None),
            // The peer has already acknowledged this sequence number, so it must answer.
            Plan::Probe => self.write_segment(now, to, Some(Send::WindowProbe)),
            Plan::Stream(send) => {
                let outgoing = self.write_segment(now, to, Some(send));
                self.tx.note_sent(send, self.negotiated.selective, now);
                outgoing
            }
        };
        Some(outgoing)
    }

    fn plan(&self, most: usize) -> Option<Plan> {
        if self.replies.reset {
            return Some(Plan::Reset);
        }
        match self.state {
            State::SynSent | State::SynReceived => return self.replies.syn.then_some(Plan::Syn),
            State::Closed => return None,
            State::FinWait2 | State::TimeWait => {}
            _ => {
                if let Some(send) = self.tx.plan(self.limits(most)) {
                    return Some(Plan::Stream(send));
                }
            }
        }
        if self.replies.probe {
            return Some(Plan::Probe);
        }
        (self.replies.ack == Acknowledge::Now).then_some(Plan::Acknowledge)
    }

    fn limits(&self, most: usize) -> Limits {
        let options = self.options_len();
        let segment = self.segment_limit().saturating_sub(options as u32).max(1);
        let room = most.saturating_sub(HEADER_LEN + options) as u32;
        Limits { segment, most: (room / segment * segment).max(segment), nagle: self.nagle }
    }

    fn options_len(&self) -> usize {
        let timestamps = if self.negotiated.timestamps { 12 } else { 0 };
        let sack = self.negotiated.selective && self.rx.has_blocks();
        // The greatest length that the option may get.
        timestamps + if sack { 4 + 8 * BLOCKS_SENT } else { 0 }
    }

    fn write_segment(&mut self, now: Time, to: &mut [u8], send: Option<Send>) -> Outgoing {
        let segment = self.limits(to.len()).segment as usize;
        let mut header = self.header(now, flags::ACK);
        if self.negotiated.selective && self.rx.has_blocks() {
            header.options.sack = self.rx.blocks();
        }
        header.ack = self.rx.next();
        header.window = self.rx.offer(self.segment_limit());
        let len = header.len();
        let payload = match send {
            None => 0,
            Some(Send::WindowProbe) => {
                header.seq = self.tx.una() - 1;
                0
            }
            Some(Send::New(start, end) | Send::Again(start, end)) => {
                header.seq = start;
                let (payload, pushes, ends) = self.tx.read((start, end), &mut to[len..]);
                header.flags |= if pushes { flags::PSH } else { 0 };
                header.flags |= if ends { flags::FIN } else { 0 };
                payload
            }
        };
        header.write(to);
        self.replies.probe = false;
        self.note_acknowledged(header.ack);
        Outgoing { header: len, payload, segment }
    }

    fn note_acknowledged(&mut self, ack: super::Seq) {
        self.replies.ack = Acknowledge::Nothing;
        self.replies.unacknowledged = 0;
        self.clocks.last_ack = ack;
    }

    pub(super) fn header(&self, now: Time, flags: u8) -> Header {
        let timestamps = Timestamps { value: self.timestamp(now), echo: self.clocks.recent.0 };
        Header {
            source: self.ports.local,
            destination: self.ports.remote,
            seq: self.tx.next(),
            ack: self.rx.next(),
            flags,
            window: 0,
            options: Options {
                timestamps: self.negotiated.timestamps.then_some(timestamps),
                ..Options::default()
            },
        }
    }

    fn write_reset(&mut self, now: Time, to: &mut [u8]) -> Outgoing {
        self.replies.reset = false;
        let header = self.header(now, flags::RST | flags::ACK);
        header.write(to);
        Outgoing { header: header.len(), payload: 0, segment: 1 }
    }

    /// A SYN offers all options. Its answer has only those that were offered.
    fn write_syn(&mut self, now: Time, to: &mut [u8]) -> Outgoing {
        self.replies.syn = false;
        let answers = self.state == State::SynReceived;
        let mut header = self.header(now, flags::SYN);
        header.seq = self.settings.initial;
        if answers {
            header.flags |= flags::ACK;
            self.note_acknowledged(header.ack);
        } else {
            header.ack = super::Seq(0);
            let value = self.timestamp(now);
            header.options.timestamps = Some(Timestamps { value, echo: 0 });
        }
        // A window in a SYN is never scaled (RFC 7323 section 2.2).
        header.window = u16::MAX;
        header.options.mss = Some(self.settings.mss);
        let scales = !answers || self.negotiated.scales;
        header.options.window_scale = scales.then_some(self.rx.scale());
        header.options.sack_permitted = !answers || self.negotiated.selective;
        header.write(to);
        Outgoing { header: header.len(), payload: 0, segment: 1 }
    }
}
