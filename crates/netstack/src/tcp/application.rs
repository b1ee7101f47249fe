//! The application's operations.

use super::{Acknowledge, Connection, LINGER, ORPHANED, State};
use crate::time::Time;

/// Space in the send buffer for which a writer is woken, in bytes.
const WORTH_WRITING: usize = 32 * 1024;

impl Connection {
    /// Bytes that can be written. Unlimited if a write would fail at once.
    pub(crate) fn write_room(&self) -> usize {
        match self.state {
            State::SynSent | State::SynReceived => 0,
            State::Established | State::CloseWait => self.tx.room(self.settings.send_buffer),
            _ => usize::MAX,
        }
    }

    /// Whether to wake a writer: there is much space, or no data is in flight that would free more.
    pub(crate) fn is_worth_writing(&self) -> bool {
        let room = self.write_room();
        room >= WORTH_WRITING || room > 0 && self.tx.is_empty()
    }

    /// Writes as many bytes as fit. Returns `None` if the stream accepts no more data.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.state {
            State::SynSent | State::SynReceived => Some(0),
            State::Established | State::CloseWait => {
                Some(self.tx.write(bytes, self.settings.send_buffer))
            }
            _ => None,
        }
    }

    pub(crate) fn readable(&self) -> usize {
        self.rx.readable()
    }

    /// Whether the peer's FIN and all data before it have arrived.
    pub(crate) fn has_received_fin(&self) -> bool {
        self.rx.has_ended()
    }

    /// Whether no further data will arrive.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rx.has_ended() || self.state == State::Closed
    }

    /// Reads the available data. Returns the number of bytes.
    pub(crate) fn read(&mut self, to: &mut [u8], now: Time) -> usize {
        let len = self.rx.read(to, now);
        self.offer_window();
        len
    }

    /// Announces the space that reading has freed, if it is worth an acknowledgement.
    fn offer_window(&mut self) {
        let open = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if open && self.rx.wants_to_offer(self.segment_limit()) {
            self.replies.ack = Acknowledge::Now;
        }
    }

    /// Sends FIN after the written data.
    pub(crate) fn shutdown(&mut self, now: Time) {
        let next = match self.state {
            State::Established | State::SynReceived => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::SynSent => {
                self.enter_closed();
                return;
            }
            _ => return,
        };
        if self.state != State::SynReceived {
            self.state = next;
        }
        self.tx.finish();
        if self.is_orphan {
            self.note_orphaned(now);
        }
    }

    /// Handles that the application has dropped the stream. Written data is still sent. Unread data
    /// is lost, and the peer gets a reset (RFC 9293 section 3.6.1, RFC 2525 section 2.17).
    pub(crate) fn close(&mut self, now: Time) {
        self.is_orphan = true;
        if self.rx.readable() > 0 {
            self.abort();
            return;
        }
        self.shutdown(now);
        self.note_orphaned(now);
    }

    fn note_orphaned(&mut self, now: Time) {
        if self.clocks.end.is_none() {
            self.clocks.end = match self.state {
                State::Closed => None,
                State::FinWait2 => Some(now + ORPHANED),
                _ => Some(now + LINGER),
            };
        }
    }

    /// Closes the connection and sends a reset to the peer.
    pub(crate) fn abort(&mut self) {
        let tell = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.replies.reset |= tell;
        self.rx.clear();
        self.enter_closed();
    }

    /// Sets whether short segments wait for data in flight (Nagle's algorithm). Off by default.
    pub(crate) fn set_nagle(&mut self, nagle: bool) {
        self.nagle = nagle;
    }

    /// Whether Nagle's algorithm is used.
    pub(crate) fn nagle(&self) -> bool {
        self.nagle
    }
}
