//! One region: connected while it is home or has datagrams, and retried after a failure.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use getrandom::{SysRng, rand_core::TryRng as _};
use tailnet::{
    derp::{kind, write_frame},
    messages::DerpRegion,
};
use tokio::{
    io::AsyncWriteExt,
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Event,
    connect::{self, Connection},
    queue::{Chunk, Queue},
    serve::{self, End},
};
use crate::agent::control::dial::Dialer;

/// The time limit for the data plane to seal a login.
const SEAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for writing the login.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The delays after consecutive failures; the last one repeats (Tailscale: 5 s at most).
const BACKOFF: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// The age after which the end of a connection does not count as a failure.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The longest delay that a restarting relay may request.
const MAX_RESTART_WAIT: Duration = Duration::from_secs(5);
/// The most pongs in the queue.
const MAX_PONGS: usize = 8;

/// Controls the task of a region, which ends on drop.
pub struct Handle {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// The state that the task of a region shares with its handle.
pub struct Shared {
    state: Mutex<State>,
    /// Data is ready to be written.
    pub to_write: Notify,
    /// The network or the key changed.
    pub to_check: Notify,
}

/// The state of a region's connection.
pub struct State {
    pub queue: Queue,
    pub is_home: bool,
    /// The last value of `is_home` that the relay has.
    pub sent_home: bool,
    /// Whether to close the connection and open another one.
    pub reconnect: bool,
    /// Whether to test the connection.
    pub check: bool,
    /// Whether to send a ping.
    pub ping: bool,
    pub pongs: Vec<[u8; 8]>,
    /// The time of the last frame.
    pub last_received: Instant,
    /// The time of the last datagram in either direction.
    pub last_datagram: Instant,
    /// The time of the first datagram that was sent after the last received frame.
    pub unanswered_since: Option<Instant>,
    /// The time of the last sent datagram, and whether [`serve::watch`] waits for an answer.
    pub last_sent: Instant,
    pub is_watched: bool,
    /// Whether the relay accepted the login.
    pub accepted: bool,
    /// The delay that a restarting relay requested.
    pub restart: Option<Duration>,
}

struct Region {
    id: u16,
    relays: Arc<DerpRegion>,
    dialer: Dialer,
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

/// Starts the task of a region.
pub fn open(
    id: u16,
    relays: Arc<DerpRegion>,
    dialer: Dialer,
    events: &mpsc::Sender<Event>,
) -> Handle {
    let shared = Arc::new(Shared::new());
    let events = events.clone();
    let region = Region { id, relays, dialer, events, shared: Arc::clone(&shared) };
    Handle { shared, task: tokio::spawn(region.run()) }
}

impl Handle {
    /// Queues datagrams.
    pub fn send(&self, chunk: Chunk) {
        self.shared.state().queue.push(chunk);
        self.shared.to_write.notify_one();
    }

    /// Sets whether the region is home.
    pub fn set_home(&self, is_home: bool) {
        self.shared.state().is_home = is_home;
        self.shared.to_write.notify_one();
        self.shared.to_check.notify_one();
    }

    /// Tests the connection.
    pub fn check(&self) {
        self.shared.state().check = true;
        self.shared.to_check.notify_one();
    }

    /// Closes the connection and opens another one.
    pub fn reconnect(&self) {
        self.shared.state().reconnect = true;
        self.shared.to_check.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    /// The state of a region that is not home.
    pub fn new() -> Self {
        let now = Instant::now();
        let state = State {
            queue: Queue::default(),
            is_home: false,
            sent_home: false,
            reconnect: false,
            check: false,
            ping: false,
            pongs: Vec::new(),
            last_received: now,
            last_datagram: now,
            unanswered_since: None,
            last_sent: now,
            is_watched: false,
            accepted: false,
            restart: None,
        };
        Self { state: Mutex::new(state), to_write: Notify::new(), to_check: Notify::new() }
    }

    /// The state. The lock is never held across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a connection is needed.
    async fn wait_until_needed(&self) {
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
}

impl State {
    /// A connection was opened.
    fn begin(&mut self, now: Instant) {
        (self.last_received, self.last_datagram) = (now, now);
        (self.unanswered_since, self.is_watched) = (None, false);
        (self.sent_home, self.ping) = (false, false);
        (self.accepted, self.restart) = (false, None);
        self.pongs.clear();
        self.queue.begin(now);
    }

    /// Stores the data of a ping for the pong, unless there are too many.
    pub fn add_pong(&mut self, ping: [u8; 8]) {
        if self.pongs.len() < MAX_PONGS {
            self.pongs.push(ping);
        }
    }

    /// Moves data to `out`. Returns whether [`serve::watch`] must start to wait for an answer.
    pub fn take(&mut self, out: &mut BytesMut, now: Instant) -> bool {
        if self.sent_home != self.is_home {
            self.sent_home = self.is_home;
            write_frame(out, kind::NOTE_PREFERRED, &[self.is_home.into()]);
        }
        if std::mem::take(&mut self.ping) {
            write_frame(out, kind::PING, &[0; 8]);
        }
        self.pongs.drain(..).for_each(|pong| write_frame(out, kind::PONG, &pong));
        if !self.queue.is_empty() {
            self.queue.take(out, now);
            (self.last_datagram, self.last_sent) = (now, now);
            self.unanswered_since.get_or_insert(now);
            return !std::mem::replace(&mut self.is_watched, true);
        }
        false
    }

    /// Notes received frames.
    pub fn handle_frames(&mut self, datagrams: bool, now: Instant) {
        (self.last_received, self.unanswered_since) = (now, None);
        if datagrams {
            self.last_datagram = now;
        }
    }
}

impl Region {
    async fn run(self) {
        let mut failures = 0;
        loop {
            self.shared.wait_until_needed().await;
            let begun = Instant::now();
            let broken = match self.serve().await {
                Ok(End::Reconnect | End::Idle) => None,
                Ok(End::Broken) => Some("the connection ended".to_owned()),
                Err(error) => Some(format!("{error:#}")),
            };
            let (accepted, restart) = {
                let mut state = self.shared.state();
                tracing::debug!(region = self.id, dropped = state.queue.dropped, "relay");
                (std::mem::take(&mut state.accepted), state.restart.take())
            };
            let Some(why) = broken else {
                failures = 0;
                continue;
            };
            let event = Event::Disconnected { region: self.id, was_up: accepted, why };
            if self.events.send(event).await.is_err() {
                return;
            }
            if accepted && begun.elapsed() >= STABLE_AFTER {
                failures = 0;
            }
            let wait = BACKOFF[failures.min(BACKOFF.len() - 1)];
            let wait = restart.map_or(wait, |restart| restart.min(MAX_RESTART_WAIT));
            failures += 1;
            // A change of the network may resolve the failure.
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                () = self.shared.to_check.notified() => {}
            }
        }
    }

    async fn serve(&self) -> anyhow::Result<End> {
        {
            // Later requests may concern this connection, so they remain set.
            let mut state = self.shared.state();
            (state.reconnect, state.check) = (false, false);
        }
        let mut connection = connect::connect(&self.dialer, &self.relays).await?;
        let login = self.seal(connection.server).await?;
        ensure!(!login.is_empty(), "no node key to log in with");
        let login_sent = Instant::now();
        let written = self.log_in(&mut connection, &login);
        timeout(LOGIN_TIMEOUT, written).await.context("the login timed out")??;
        self.shared.state().begin(Instant::now());
        serve::serve(connection, login_sent, self.id, &self.shared, &self.events).await
    }

    /// Requests the sealed contents of the login.
    async fn seal(&self, server: [u8; 32]) -> anyhow::Result<Bytes> {
        let (reply, sealed) = oneshot::channel();
        let event = Event::Login { region: self.id, server, reply };
        self.events.send(event).await.context("the agent has ended")?;
        let sealed =
            timeout(SEAL_TIMEOUT, sealed).await.context("the login was not sealed in time")?;
        sealed.context("the login was not sealed")
    }

    async fn log_in(&self, connection: &mut Connection, login: &[u8]) -> anyhow::Result<()> {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind::CLIENT_INFO, login);
        connection.stream.write_all(&out).await?;
        Ok(connection.stream.flush().await?)
    }
}

/// A random duration from half of `wait` to all of it, so that the clients of a relay do not return
/// at the same time.
fn jittered(wait: Duration) -> Duration {
    let number = SysRng.try_next_u32().unwrap_or(0);
    wait / 2 + wait.mul_f64(f64::from(number) / f64::from(u32::MAX)) / 2
}
