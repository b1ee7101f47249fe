//! One TCP connection as a state machine: RFC 9293, with window scale and timestamps (7323),
//! selective acknowledgements (2018, 2883, 6675), RACK-TLP (8985), BBR (draft-ietf-ccwg-bbr) with
//! pacing, or CUBIC (9438) with proportional rate reduction (6937). No clock, no I/O.
//!
//! ```text
//!   write -> Sender   -- poll_transmit --> segments and super-packets
//!              | Flight: scoreboard, RACK, RTT, delivery rate, BBR or CUBIC, pacer
//!   read  <- Receiver <-- handle_segment -- segments, coalesced or not
//!              | window, out-of-order ranges
//!            poll_timeout, handle_timeout
//! ```
//!
//! Call `handle_segment` for received segments, and `handle_timeout` at the time of
//! [`Connection::poll_timeout`]. After these two, and after `write`, `read` and `shutdown`, call
//! `poll_transmit` until it returns `None`.

mod application;
mod congestion_control;
mod delivery;
mod flight;
mod input;
mod keepalive;
mod options;
mod output;
mod pacer;
mod rack;
mod receiver;
mod ring;
mod rtt;
mod scoreboard;
mod segment;
mod sender;
mod seq;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use congestion_control::CongestionControl;
pub(crate) use input::Verdict;
pub use keepalive::Keepalive;
#[cfg(test)]
pub(crate) use options::Timestamps;
use receiver::Receiver;
pub(crate) use segment::{HANDSHAKE, Header, Payload, Segment, flags};
use sender::Sender;
pub(crate) use seq::Seq;

use crate::{budget::Budget, time::Time};

/// The MSS of a peer that does not send one (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u32 = 536;
/// The smallest segment payload that a peer or a path may request, in bytes. Smaller segments would
/// cost more than they carry.
const MIN_MSS: u32 = 48;
/// Duration of TIME-WAIT: twice the MSL of RFC 9293, with Linux' value (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT: Duration = Duration::from_secs(60);
/// Time for which an orphaned connection waits for the peer's FIN (Linux `tcp_fin_timeout`).
const ORPHANED: Duration = Duration::from_secs(60);
/// Time for which an orphaned connection with unacknowledged data waits for progress, even if the
/// peer answers (RFC 9293 section 3.8.3 requires at least 100 s).
const LINGER: Duration = Duration::from_secs(100);
/// Consecutive timeouts after which the peer is considered gone (Linux `tcp_retries2`: a quarter of
/// an hour).
const RETRIES: u32 = 15;
/// The same for a SYN: two minutes (Linux `tcp_syn_retries`).
const SYN_RETRIES: u32 = 6;

/// Number of buffers of a connection. Budget is reserved for each.
pub(crate) const BUFFERS: usize = 2;

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The largest segment payload that this end can receive, in bytes, as the MTU allows.
    pub mss: u16,
    /// Capacity of the receive buffer, in bytes.
    pub receive_buffer: usize,
    /// Capacity of the send buffer, in bytes. It includes unacknowledged data.
    pub send_buffer: usize,
    /// The memory limit of all connections.
    pub budget: Budget,
    /// The congestion control.
    pub control: CongestionControl,
    /// The initial sequence number, which must be unpredictable (RFC 6528).
    pub initial: Seq,
    /// Offset of the clock in timestamps (RFC 7323 section 5.4).
    pub timestamp_offset: u32,
}

/// The states of RFC 9293 section 3.3.2, except LISTEN, which the stack handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Our SYN is or will be sent.
    SynSent,
    /// A SYN was received, and ours is not acknowledged.
    SynReceived,
    /// Data may be sent in both directions.
    Established,
    /// We sent FIN.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The peer sent FIN.
    CloseWait,
    /// Both sent FIN, and ours is not acknowledged.
    Closing,
    /// The peer sent FIN first, and our FIN is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged. Old segments may still arrive.
    TimeWait,
    /// The connection is closed.
    Closed,
}

/// Reason for an abnormal end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing listens at the peer's port.
    Refused,
    /// The peer sent a reset.
    Reset,
    /// The peer did not answer.
    TimedOut,
    /// A router reported that the peer is unreachable.
    Unreachable,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    state: State,
    ports: Ports,
    settings: Settings,
    negotiated: Negotiated,
    tx: Sender,
    rx: Receiver,
    replies: Replies,
    clocks: Clocks,
    failure: Option<Failure>,
    nagle: bool,
    /// Whether the application has dropped the stream. Received data is then answered by a reset.
    is_orphan: bool,
    keepalive_state: Option<keepalive::KeepaliveState>,
}

/// The ports of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// The local port.
    pub local: u16,
    /// The peer's port.
    pub remote: u16,
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug)]
struct Negotiated {
    /// The peer's MSS: segment payload including TCP options, in bytes.
    mss: u32,
    /// The same limit by the path MTU.
    path: u32,
    /// Whether window scaling is used, and the peer's shift.
    scales: bool,
    scale: u8,
    selective: bool,
    timestamps: bool,
}

/// The replies to send.
#[derive(Debug, Default)]
struct Replies {
    /// A SYN, or a SYN with an acknowledgement.
    syn: bool,
    reset: bool,
    /// A keepalive probe.
    probe: bool,
    ack: Acknowledge,
    /// Bytes received since the last acknowledgement.
    unacknowledged: u32,
    /// Remaining segments to acknowledge at once at the start of the connection.
    quick: u8,
    /// Start of the present second, and challenges sent in it (RFC 5961 section 7).
    challenges: (Time, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Acknowledge {
    #[default]
    Nothing,
    /// Send an acknowledgement at this time, unless another segment carries it before.
    Later(Time),
    Now,
}

/// Deadlines and timestamps.
#[derive(Debug, Default)]
struct Clocks {
    /// Time of the next SYN, and number of repetitions so far.
    syn: Option<(Time, u32)>,
    /// Time of the first SYN.
    started: Time,
    /// Time at which the connection ends.
    end: Option<Time>,
    /// The peer's timestamp to echo, and its time of arrival (RFC 7323 section 4.3).
    recent: (u32, Time),
    /// The last acknowledgement that was sent.
    last_ack: Seq,
}

/// Segments that are acknowledged at once at the start, while the peer is in slow start.
const QUICK: u8 = 16;

impl Connection {
    /// Opens a connection to a peer.
    pub(crate) fn connect(settings: Settings, ports: Ports, now: Time) -> Self {
        let mut connection = Self::new(settings, ports, State::SynSent);
        connection.begin(now);
        connection
    }

    /// Accepts a SYN.
    pub(crate) fn accept(settings: Settings, ports: Ports, syn: &Header, now: Time) -> Self {
        let mut connection = Self::new(settings, ports, State::SynReceived);
        connection.take_syn(syn, now);
        connection.begin(now);
        connection
    }

    fn new(settings: Settings, ports: Ports, state: State) -> Self {
        let Settings { mss, receive_buffer, initial, ref budget, control, .. } = settings;
        let mss = u32::from(mss);
        let control = congestion_control::Settings { algorithm: control, mss, seed: initial.0 };
        let negotiated = Negotiated {
            mss,
            path: mss,
            scales: false,
            scale: 0,
            selective: false,
            timestamps: false,
        };
        Self {
            state,
            ports,
            negotiated,
            tx: Sender::new(initial, control, budget.clone()),
            rx: Receiver::new(receive_buffer, budget.clone()),
            replies: Replies { quick: QUICK, ..Replies::default() },
            clocks: Clocks::default(),
            failure: None,
            nagle: false,
            is_orphan: false,
            keepalive_state: None,
            settings,
        }
    }

    fn begin(&mut self, now: Time) {
        self.replies.syn = true;
        self.clocks.started = now;
        self.clocks.syn = Some((now + self.tx.flight.rtt.timeout(0), 0));
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the reason for an abnormal end, once.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Whether the connection can be removed, because nothing is left to send.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Closed && !self.replies.reset
    }

    /// Whether the connection is or was established.
    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// Whether the connection is established and not closed.
    fn has_stream(&self) -> bool {
        self.is_connected() && self.state != State::Closed
    }

    /// Whether a sequence number is in flight. ICMP messages that quote other sequence numbers are
    /// ignored (RFC 5927 section 4.1).
    pub(crate) fn is_in_flight(&self, seq: Seq) -> bool {
        match self.state {
            State::SynSent | State::SynReceived => seq == self.settings.initial,
            _ => !seq.before(self.tx.una()) && seq.before(self.tx.next()),
        }
    }

    /// The largest segment payload, without TCP options, that peer and path allow.
    pub(crate) fn segment_limit(&self) -> u32 {
        self.negotiated.mss.min(self.negotiated.path)
    }

    /// Lowers the largest segment payload of the path to `mss` bytes (RFC 1191, RFC 8201).
    pub(crate) fn lower_path(&mut self, mss: u32) {
        let mss = mss.max(MIN_MSS);
        if mss >= self.negotiated.path {
            return;
        }
        self.negotiated.path = mss;
        self.tx.flight.set_mss(self.segment_limit());
        // Longer segments were dropped on their way and are retransmitted at once.
        self.tx.flight.board.mark_lost(|_| true);
    }

    /// Handles an ICMP "unreachable". It is fatal only before the connection is established; later
    /// it may be temporary (RFC 5461).
    pub(crate) fn unreachable(&mut self, refused: bool) {
        if self.state == State::SynSent {
            self.fail(if refused { Failure::Refused } else { Failure::Unreachable });
        }
    }

    /// Closes the connection with a failure, without a segment to the peer.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.enter_closed();
    }

    fn enter_closed(&mut self) {
        self.state = State::Closed;
        self.tx.clear();
        // The missing bytes before this data will not arrive.
        self.rx.drop_out_of_order();
        self.clocks.syn = None;
        self.clocks.end = None;
        self.replies.syn = false;
        self.replies.probe = false;
        self.replies.ack = Acknowledge::Nothing;
    }

    fn enter_time_wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.clocks.end = Some(now + TIME_WAIT);
    }

    /// Least payload of a full segment from the peer: the smaller MSS, without all options.
    fn full_segment(&self) -> u32 {
        self.negotiated.mss.min(self.settings.mss.into()).saturating_sub(40).max(1)
    }

    /// Time at which `handle_timeout` must be called.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let ack = match self.replies.ack {
            Acknowledge::Later(due) => Some(due),
            _ => None,
        };
        let syn = self.clocks.syn.map(|(due, _)| due);
        let others = [ack, syn, self.clocks.end, self.tx.poll_timeout(), self.keepalive_due()];
        others.into_iter().flatten().min()
    }

    /// Handles the timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.clocks.end.is_some_and(|due| due <= now) {
            match self.state {
                State::FinWait2 | State::TimeWait => self.enter_closed(),
                _ => self.abort(),
            }
            return;
        }
        if let Acknowledge::Later(due) = self.replies.ack
            && due <= now
        {
            self.replies.ack = Acknowledge::Now;
        }
        if let Some((due, count)) = self.clocks.syn
            && due <= now
        {
            self.repeat_syn(count + 1, now);
        }
        if self.has_stream() && self.tx.handle_timeout(self.negotiated.selective, now) > RETRIES {
            self.fail(Failure::TimedOut);
        }
        self.handle_keepalive(now);
        // Pacing may have been the only reason to wait, and the window may be full now.
        if self.has_stream() && !self.wants_transmit(usize::from(u16::MAX)) {
            self.tx.note_idle(now);
        }
    }

    fn repeat_syn(&mut self, count: u32, now: Time) {
        if count > SYN_RETRIES {
            self.fail(Failure::TimedOut);
            return;
        }
        self.replies.syn = true;
        self.clocks.syn = Some((now + self.tx.flight.rtt.timeout(count), count));
    }

    /// The local clock in timestamps: milliseconds since an arbitrary time.
    fn timestamp(&self, now: Time) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.settings.timestamp_offset)
    }
}
