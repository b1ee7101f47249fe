//! The state of a region's connection, which its tasks share: the data to send, and the signs that
//! the relay still answers.
//!
//! ```text
//!   Handle ── datagrams, home, check ──► Shared ──► frames ──► writer
//!   reader ── received frames, pings ──►    `─────► Watch ──► when to test, or to close
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use tailnet::derp::{kind, write_frame};
use tokio::{sync::Notify, time::Instant};

use super::queue::{Chunk, Queue};

/// The most pongs in the queue.
const MAX_PONGS: usize = 8;
/// The longest silence of a relay, which sends something at least every 65 s (Tailscale).
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time without datagrams after which a region that is not home is closed (Tailscale).
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of a pong. A dead relay is left within 2.5 s of the first datagram that it did
/// not relay.
pub(super) const PONG_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time without received frames after a datagram was sent, after which a ping is sent.
const ANSWER_DELAY: Duration = Duration::from_millis(500);

/// The state that the task of a region shares with its handle.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Data is ready to be written.
    to_write: Notify,
    /// The network or the key changed.
    to_check: Notify,
}

/// The state of a region's connection.
struct State {
    queue: Queue,
    is_home: bool,
    /// The last value of `is_home` that the relay has.
    sent_home: bool,
    /// Whether to close the connection and open another one.
    reconnect: bool,
    /// Whether to test the connection.
    check: bool,
    /// Whether to send a ping.
    ping: bool,
    pongs: Vec<[u8; 8]>,
    liveness: Liveness,
    /// Whether the relay accepted the login.
    accepted: bool,
    /// The delay that a restarting relay requested.
    restart: Option<Duration>,
}

/// The times at which a relay sent or was sent something.
struct Liveness {
    /// The time of the last frame.
    last_received: Instant,
    /// The time of the last datagram in either direction.
    last_datagram: Instant,
    /// The time of the last sent datagram.
    last_sent: Instant,
    /// The time of the first datagram that was sent after the last received frame.
    unanswered_since: Option<Instant>,
    /// The time of the last unanswered ping.
    doubted_since: Option<Instant>,
    /// Whether [`Shared::watch`] waits for an answer.
    is_watched: bool,
}

/// The result of a connection that ended.
pub(super) struct Ended {
    /// Whether the relay had accepted the login.
    pub accepted: bool,
    /// The delay that a restarting relay requested.
    pub restart: Option<Duration>,
    /// The number of dropped chunks.
    pub dropped: u64,
}

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// Watch it again at this time.
    Until(Instant),
    /// Close it, and open another one.
    Reconnect,
    /// Close it: it is idle.
    Idle,
    /// Close it: the relay did not answer for [`PONG_TIMEOUT`].
    Unanswered,
    /// Close it: the relay sent nothing for [`SILENCE_TIMEOUT`].
    Silent,
}

impl Shared {
    /// The state of a region that is not home.
    pub(super) fn new() -> Self {
        let state = State {
            queue: Queue::default(),
            is_home: false,
            sent_home: false,
            reconnect: false,
            check: false,
            ping: false,
            pongs: Vec::new(),
            liveness: Liveness::new(Instant::now()),
            accepted: false,
            restart: None,
        };
        Self { state: Mutex::new(state), to_write: Notify::new(), to_check: Notify::new() }
    }

    /// The state. The lock is never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues datagrams.
    pub(super) fn push(&self, chunk: Chunk) {
        self.state().queue.push(chunk);
        self.to_write.notify_one();
    }

    /// Sets whether the region is home.
    pub(super) fn set_home(&self, is_home: bool) {
        self.state().is_home = is_home;
        self.to_write.notify_one();
        self.to_check.notify_one();
    }

    /// Tests the connection.
    pub(super) fn check(&self) {
        self.state().check = true;
        self.to_check.notify_one();
    }

    /// Closes the connection and opens another one.
    pub(super) fn reconnect(&self) {
        self.state().reconnect = true;
        self.to_check.notify_one();
    }

    /// Waits until a connection is needed.
    pub(super) async fn wait_until_needed(&self) {
        loop {
            {
                let mut state = self.state();
                state.queue.expire(Instant::now());
                if state.is_home || !state.queue.is_empty() {
                    return;
                }
            }
            self.to_write.notified().await;
        }
    }

    /// Waits until there is data to write.
    pub(super) async fn wait_to_write(&self) {
        self.to_write.notified().await;
    }

    /// Waits until the network or the key changed, or until [`Self::watch`] has an earlier result.
    pub(super) async fn wait_to_check(&self) {
        self.to_check.notified().await;
    }

    /// A connection is being opened. Later requests to test or replace it remain set.
    pub(super) fn start_connecting(&self) {
        let mut state = self.state();
        (state.reconnect, state.check) = (false, false);
    }

    /// A connection was opened.
    pub(super) fn begin(&self, now: Instant) {
        let mut state = self.state();
        state.liveness = Liveness { last_sent: state.liveness.last_sent, ..Liveness::new(now) };
        (state.sent_home, state.ping) = (false, false);
        (state.accepted, state.restart) = (false, None);
        state.pongs.clear();
        state.queue.begin(now);
    }

    /// The connection ended.
    pub(super) fn end(&self) -> Ended {
        let mut state = self.state();
        let accepted = std::mem::take(&mut state.accepted);
        Ended { accepted, restart: state.restart.take(), dropped: state.queue.dropped() }
    }

    /// The relay accepted the login. Returns whether this is the first time.
    pub(super) fn accept(&self) -> bool {
        !std::mem::replace(&mut self.state().accepted, true)
    }

    /// The relay restarts, and requests this delay.
    pub(super) fn set_restart(&self, delay: Duration) {
        self.state().restart = Some(delay);
    }

    /// Stores the data of a ping for the pong, unless there are too many.
    pub(super) fn add_pong(&self, ping: [u8; 8]) {
        let mut state = self.state();
        if state.pongs.len() < MAX_PONGS {
            state.pongs.push(ping);
        }
        self.to_write.notify_one();
    }

    /// Notes received frames.
    pub(super) fn handle_frames(&self, datagrams: bool, now: Instant) {
        let liveness = &mut self.state().liveness;
        (liveness.last_received, liveness.unanswered_since) = (now, None);
        if datagrams {
            liveness.last_datagram = now;
        }
    }

    /// Moves frames to `out`. Wakes the watch if it must start to wait for an answer; returns
    /// whether it did.
    pub(super) fn take(&self, out: &mut BytesMut, now: Instant) -> bool {
        let starts_watch = self.state().take(out, now);
        if starts_watch {
            self.to_check.notify_one();
        }
        starts_watch
    }

    /// Checks the connection. `is_ours` returns whether this machine still has its local address.
    pub(super) fn watch(&self, now: Instant, is_ours: impl FnOnce() -> bool) -> Watch {
        let mut state = self.state();
        let watch = state.watch(now, is_ours);
        if state.ping {
            self.to_write.notify_one();
        }
        watch
    }
}

impl State {
    fn take(&mut self, out: &mut BytesMut, now: Instant) -> bool {
        if self.sent_home != self.is_home {
            self.sent_home = self.is_home;
            write_frame(out, kind::NOTE_PREFERRED, &[self.is_home.into()]);
        }
        if std::mem::take(&mut self.ping) {
            write_frame(out, kind::PING, &[0; 8]);
        }
        self.pongs.drain(..).for_each(|pong| write_frame(out, kind::PONG, &pong));
        if self.queue.is_empty() {
            return false;
        }
        self.queue.take(out, now);
        self.liveness.handle_sent(now)
    }

    fn watch(&mut self, now: Instant, is_ours: impl FnOnce() -> bool) -> Watch {
        if self.reconnect {
            return Watch::Reconnect;
        }
        let liveness = &mut self.liveness;
        if std::mem::take(&mut self.check) {
            if !is_ours() {
                return Watch::Reconnect;
            }
            liveness.doubted_since = Some(now);
            self.ping = true;
        }
        let last_received = liveness.last_received;
        let doubted = liveness.doubted_since.filter(|since| last_received <= *since);
        liveness.doubted_since = doubted;
        if doubted.is_some_and(|since| now >= since + PONG_TIMEOUT) {
            return Watch::Unanswered;
        }
        let quiet = liveness.watch_answers(now);
        if doubted.is_none() && quiet.is_some_and(|at| now >= at) {
            liveness.doubted_since = Some(now);
            self.ping = true;
        }
        if now >= last_received + SILENCE_TIMEOUT {
            return Watch::Silent;
        }
        let idle = (!self.is_home).then(|| liveness.last_datagram + IDLE_TIMEOUT);
        if idle.is_some_and(|at| now >= at) {
            return Watch::Idle;
        }
        let answer = liveness.doubted_since.map(|since| since + PONG_TIMEOUT).or(quiet);
        let silence = last_received + SILENCE_TIMEOUT;
        Watch::Until(idle.into_iter().chain(answer).fold(silence, Instant::min))
    }
}

impl Liveness {
    fn new(now: Instant) -> Self {
        Self {
            last_received: now,
            last_datagram: now,
            last_sent: now,
            unanswered_since: None,
            doubted_since: None,
            is_watched: false,
        }
    }

    /// Datagrams were sent. Returns whether to start to wait for an answer.
    fn handle_sent(&mut self, now: Instant) -> bool {
        (self.last_datagram, self.last_sent) = (now, now);
        self.unanswered_since.get_or_insert(now);
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// The time of the next check for an answer, while datagrams are sent.
    fn watch_answers(&mut self, now: Instant) -> Option<Instant> {
        self.is_watched = self.unanswered_since.is_some() || now < self.last_sent + ANSWER_DELAY;
        self.is_watched.then(|| self.unanswered_since.unwrap_or(now) + ANSWER_DELAY)
    }
}
