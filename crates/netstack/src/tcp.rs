//! One TCP connection as a state machine: RFC 9293, with window scale and timestamps
//! (7323), selective acknowledgements (2018, 2883, 6675), RACK-TLP (8985), BBR
//! (draft-ietf-ccwg-bbr) with pacing, or CUBIC (9438) with proportional rate reduction
//! (6937). No clock, no I/O.
//!
//! ```text
//!   write -> Sender   -- poll_transmit --> segments and super-packets
//!              | Flight: scoreboard, RACK, RTT, delivery rate, BBR or CUBIC, pacer
//!   read  <- Receiver <-- handle_segment -- segments and what was coalesced of them
//!              | window, early stretches
//!            poll_timeout, handle_timeout
//! ```
//!
//! Call `handle_segment` for what came, `handle_timeout` when [`Connection::poll_timeout`]
//! says so, and after each of both, and after `write`, `read` and `shutdown`,
//! `poll_transmit` until it has nothing more.

mod application;
mod control;
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

pub use control::CongestionControl;
pub use input::Verdict;
pub use keepalive::Keepalive;
#[cfg(test)]
pub use options::Timestamps;
use receiver::Receiver;
pub use segment::{HANDSHAKE, Header, Payload, Segment, flags};
use sender::Sender;
pub use seq::Seq;

use crate::{budget::Budget, time::Time};

/// What a peer is taken to accept that says nothing of it (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u32 = 536;
/// The least payload of a segment that a peer or a path may ask for, in bytes: less
/// would cost more than it carries.
const MIN_MSS: u32 = 48;
/// How long both ends' old segments may be under way: twice RFC 9293's MSL as it is in
/// Linux (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT: Duration = Duration::from_secs(60);
/// How long a peer may leave its half open when ours is gone altogether (Linux
/// `tcp_fin_timeout`).
const ORPHANED: Duration = Duration::from_secs(60);
/// How long it may take nothing of what we still have to say when ours is gone, whatever
/// it answers (RFC 9293 section 3.8.3 asks for at least 100 s).
const LINGER: Duration = Duration::from_secs(100);
/// Time-outs in a row after which a peer is taken to be gone (Linux `tcp_retries2`: a
/// quarter of an hour).
const RETRIES: u32 = 15;
/// The same of SYN: two minutes (Linux `tcp_syn_retries`).
const SYN_RETRIES: u32 = 6;

/// Buffers of a connection, each with bytes of the budget that are set aside for it.
pub const BUFFERS: usize = 2;

/// What a connection is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Payload of a segment at most that this end can receive, in bytes: what the MTU
    /// leaves.
    pub mss: u16,
    /// Bytes that may wait to be read, at most.
    pub receive_buffer: usize,
    /// Bytes that may wait to be sent and acknowledged, at most.
    pub send_buffer: usize,
    /// The memory of all connections.
    pub budget: Budget,
    /// How it finds out how much may fly.
    pub control: CongestionControl,
    /// The first sequence number, which nobody can guess (RFC 6528).
    pub initial: Seq,
    /// What is added to the clock in timestamps (RFC 7323 section 5.4).
    pub timestamp_offset: u32,
}

/// The states of RFC 9293 section 3.3.2; listening is the stack's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// SYN was or is to be sent.
    SynSent,
    /// A SYN came, ours is not acknowledged.
    SynReceived,
    /// Data both ways.
    Established,
    /// We ended our half.
    FinWait1,
    /// The same, and it was acknowledged.
    FinWait2,
    /// The peer ended its half.
    CloseWait,
    /// Both ended theirs, and ours is not acknowledged.
    Closing,
    /// The peer did, then we, and ours is not acknowledged.
    LastAck,
    /// All was said; old segments may be on their way.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// Why a connection ended other than by both ends' will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing listens at the peer's port.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer did not answer.
    TimedOut,
    /// A router said that there is no way.
    Unreachable,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
    ports: Ports,
    settings: Settings,
    agreed: Agreed,
    tx: Sender,
    rx: Receiver,
    replies: Replies,
    clocks: Clocks,
    failure: Option<Failure>,
    nagle: bool,
    /// Whether nobody reads any more: what comes is answered by a reset.
    deaf: bool,
    pulse: Option<keepalive::Pulse>,
}

/// Both ends' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// What both ends agreed on.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    /// Payload of a segment with its options, by the peer's word.
    mss: u32,
    /// The same by what the path lets through.
    path: u32,
    /// Whether windows are shifted, and the peer's by how many bits.
    scales: bool,
    scale: u8,
    selective: bool,
    timestamps: bool,
}

/// What is to be answered.
#[derive(Debug, Default)]
struct Replies {
    /// SYN, or SYN with an acknowledgement.
    syn: bool,
    reset: bool,
    /// A question whether the peer is there.
    probe: bool,
    ack: Acknowledge,
    /// Bytes that came since the last acknowledgement.
    unacknowledged: u32,
    /// Acknowledgements that are still sent at once at the beginning.
    quick: u8,
    /// Challenges in this second (RFC 5961 section 7).
    challenges: (Time, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Acknowledge {
    #[default]
    Nothing,
    /// When nothing else carries it until then.
    Later(Time),
    Now,
}

/// Deadlines and timestamps.
#[derive(Debug, Default)]
struct Clocks {
    /// When a SYN is repeated, and how often it was.
    syn: Option<(Time, u32)>,
    /// When the first SYN was sent.
    begun: Time,
    /// When the connection is over at last.
    end: Option<Time>,
    /// The peer's timestamp to echo, and when it came (RFC 7323 section 4.3).
    recent: (u32, Time),
    /// What was acknowledged last.
    last_ack: Seq,
}

/// Segments that are acknowledged at once at the beginning: the peer is in slow start.
const QUICK: u8 = 16;

impl Connection {
    /// Asks a peer for a connection.
    pub fn connect(settings: Settings, ports: Ports, now: Time) -> Self {
        let mut connection = Self::new(settings, ports, State::SynSent);
        connection.begin(now);
        connection
    }

    /// Answers a SYN.
    pub fn accept(settings: Settings, ports: Ports, syn: &Header, now: Time) -> Self {
        let mut connection = Self::new(settings, ports, State::SynReceived);
        connection.take_syn(syn, now);
        connection.begin(now);
        connection
    }

    fn new(settings: Settings, ports: Ports, state: State) -> Self {
        let Settings { mss, receive_buffer, initial, ref budget, control, .. } = settings;
        let mss = u32::from(mss);
        let control = control::Settings { algorithm: control, mss, seed: initial.0 };
        let agreed =
            Agreed { mss, path: mss, scales: false, scale: 0, selective: false, timestamps: false };
        Self {
            state,
            ports,
            agreed,
            tx: Sender::new(initial, control, budget.clone()),
            rx: Receiver::new(receive_buffer, budget.clone()),
            replies: Replies { quick: QUICK, ..Replies::default() },
            clocks: Clocks::default(),
            failure: None,
            nagle: false,
            deaf: false,
            pulse: None,
            settings,
        }
    }

    fn begin(&mut self, now: Time) {
        self.replies.syn = true;
        self.clocks.begun = now;
        self.clocks.syn = Some((now + self.tx.flight.rtt.timeout(0), 0));
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it ended; the answer is given once.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Whether there is nothing left to do: it can be forgotten.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed && !self.replies.reset
    }

    /// Whether data can go both ways, or could once.
    pub fn is_connected(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// Whether there is a stream to look after.
    fn has_stream(&self) -> bool {
        self.is_connected() && self.state != State::Closed
    }

    /// Whether a sequence number is of something that is on its way: an ICMP message
    /// that quotes another is none of this connection (RFC 5927 section 4.1).
    pub fn is_flying(&self, seq: Seq) -> bool {
        match self.state {
            State::SynSent | State::SynReceived => seq == self.settings.initial,
            _ => !seq.before(self.tx.una()) && seq.before(self.tx.next()),
        }
    }

    /// Payload of a segment without options that neither the peer nor the path refuses.
    pub fn segment_limit(&self) -> u32 {
        self.agreed.mss.min(self.agreed.path)
    }

    /// The path lets through segments of `mss` bytes only (RFC 1191, RFC 8201).
    pub fn lower_path(&mut self, mss: u32) {
        let mss = mss.max(MIN_MSS);
        if mss >= self.agreed.path {
            return;
        }
        self.agreed.path = mss;
        self.tx.flight.set_mss(self.segment_limit());
        // What is longer was dropped on the way, and is sent again at once.
        self.tx.flight.board.mark_lost(|_| true);
    }

    /// A router says that there is no way to the peer. That counts before there is a
    /// connection; later it may be a passing trouble (RFC 5461).
    pub fn unreachable(&mut self, refused: bool) {
        if self.state == State::SynSent {
            self.fail(if refused { Failure::Refused } else { Failure::Unreachable });
        }
    }

    /// It ended, and nobody need be told.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.enter_closed();
    }

    fn enter_closed(&mut self) {
        self.state = State::Closed;
        self.tx.clear();
        // What is missing before that will not come.
        self.rx.forget_early();
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

    /// Payload that a full segment of the peer's has at least: what both sides' links
    /// carry, without all options.
    fn full_segment(&self) -> u32 {
        self.agreed.mss.min(self.settings.mss.into()).saturating_sub(40).max(1)
    }

    /// When `handle_timeout` is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let ack = match self.replies.ack {
            Acknowledge::Later(due) => Some(due),
            _ => None,
        };
        let syn = self.clocks.syn.map(|(due, _)| due);
        let others = [ack, syn, self.clocks.end, self.tx.poll_timeout(), self.keepalive_due()];
        others.into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
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
        if self.has_stream() && self.tx.handle_timeout(self.agreed.selective, now) > RETRIES {
            self.fail(Failure::TimedOut);
        }
        self.handle_keepalive(now);
        // The pace may have been all that it waited for, and the window is full behind it.
        if self.has_stream() && !self.wants_transmit(usize::from(u16::MAX)) {
            self.tx.note_rest(now);
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

    /// This end's clock in timestamps: milliseconds from somewhere.
    fn timestamp(&self, now: Time) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.settings.timestamp_offset)
    }
}
