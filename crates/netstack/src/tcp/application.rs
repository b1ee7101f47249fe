//! What the application does.

use super::{Acknowledge, Connection, LINGER, ORPHANED, State};
use crate::time::Time;

/// Room for writes that is worth waking a writer, in bytes.
const WORTH_WRITING: usize = 32 * 1024;

impl Connection {
    /// How many bytes can be written; any number where a write fails at once.
    pub fn write_room(&self) -> usize {
        match self.state {
            State::SynSent | State::SynReceived => 0,
            State::Established | State::CloseWait => self.tx.room(self.settings.send_buffer),
            _ => usize::MAX,
        }
    }

    /// Whether it is worth waking a task that waits to write: there is much room, or nothing
    /// is in flight that would free more.
    pub fn is_worth_writing(&self) -> bool {
        let room = self.write_room();
        room >= WORTH_WRITING || room > 0 && self.tx.is_empty()
    }

    /// Writes what there is room for; `None` where nothing may be written any more.
    pub fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.state {
            State::SynSent | State::SynReceived => Some(0),
            State::Established | State::CloseWait => {
                Some(self.tx.write(bytes, self.settings.send_buffer))
            }
            _ => None,
        }
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> usize {
        self.rx.readable()
    }

    /// Whether the peer said that nothing will come behind what can be read.
    pub fn has_heard_all(&self) -> bool {
        self.rx.has_ended()
    }

    /// Whether nothing will come behind what can be read.
    pub fn is_at_end(&self) -> bool {
        self.rx.has_ended() || self.state == State::Closed
    }

    /// Reads what came; how many bytes.
    pub fn read(&mut self, to: &mut [u8], now: Time) -> usize {
        let len = self.rx.read(to, now);
        self.offer_window();
        len
    }

    /// Has the peer hear of room that reading made.
    fn offer_window(&mut self) {
        let open = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if open && self.rx.wants_to_offer(self.segment_limit()) {
            self.replies.ack = Acknowledge::Now;
        }
    }

    /// Ends our half behind what was written.
    pub fn shutdown(&mut self, now: Time) {
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
        if self.deaf {
            self.note_orphaned(now);
        }
    }

    /// The application is gone. What it wrote still goes out; what it did not read is
    /// lost, and the peer is told so (RFC 9293 section 3.6.1, RFC 2525 section 2.17).
    pub fn close(&mut self, now: Time) {
        self.deaf = true;
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

    /// Ends it at once, and tells the peer.
    pub fn abort(&mut self) {
        let tell = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.replies.reset |= tell;
        self.rx.clear();
        self.enter_closed();
    }

    /// Whether short segments wait for what is on its way (Nagle); not at first.
    pub fn set_nagle(&mut self, nagle: bool) {
        self.nagle = nagle;
    }

    /// Whether they do.
    pub fn nagle(&self) -> bool {
        self.nagle
    }
}
