//! One region: connected while it is home or there is something to send, and again after trouble.

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

/// How long the data plane has to seal a login.
const SEAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first bytes may take to be written.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The waits after failures, the last for all others (stock: 5 s at most).
const BACKOFF: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// A connection that lasted so long was no failure.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The longest wait that a relay may ask for before it restarts.
const MAX_RESTART_WAIT: Duration = Duration::from_secs(5);
/// Pongs that wait to be sent.
const MAX_PONGS: usize = 8;

/// What tells a region; it ends with it.
pub struct Handle {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What a region's task is told by others, and its own parts tell each other.
pub struct Shared {
    state: Mutex<State>,
    /// Something is to be written.
    pub to_write: Notify,
    /// The network or the key is another.
    pub to_check: Notify,
}

/// What is known of a region's connection.
pub struct State {
    pub queue: Queue,
    pub is_home: bool,
    /// What the relay was told.
    pub sent_home: bool,
    /// Whether the connection is to be given up.
    pub reconnect: bool,
    /// Whether it is to be found out if the connection works.
    pub check: bool,
    /// Whether to ask the relay for a pong.
    pub ping: bool,
    pub pongs: Vec<[u8; 8]>,
    /// The last frame.
    pub last_received: Instant,
    /// The last datagram in either direction.
    pub last_datagram: Instant,
    /// When a datagram was first sent of those behind the last frame.
    pub unanswered_since: Option<Instant>,
    /// When one was last sent, and whether somebody watches whether there is an answer.
    pub last_sent: Instant,
    pub is_watched: bool,
    /// The relay accepted the login.
    pub accepted: bool,
    /// How long to wait for a relay that restarts.
    pub restart: Option<Duration>,
}

struct Region {
    id: u16,
    relays: Arc<DerpRegion>,
    dialer: Dialer,
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

/// Begins with a region.
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
    /// Has datagrams sent.
    pub fn send(&self, chunk: Chunk) {
        self.shared.state().queue.push(chunk);
        self.shared.to_write.notify_one();
    }

    /// Says whether the region is home.
    pub fn set_home(&self, is_home: bool) {
        self.shared.state().is_home = is_home;
        self.shared.to_write.notify_one();
        self.shared.to_check.notify_one();
    }

    /// Has it found out whether the connection works.
    pub fn check(&self) {
        self.shared.state().check = true;
        self.shared.to_check.notify_one();
    }

    /// Has it connected anew.
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
    /// Of a region that is not home.
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

    /// What is known. No lock is held while anything waits.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a reason to be connected.
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
    /// A connection begins.
    fn begin(&mut self, now: Instant) {
        (self.last_received, self.last_datagram) = (now, now);
        (self.unanswered_since, self.is_watched) = (None, false);
        (self.sent_home, self.ping) = (false, false);
        (self.accepted, self.restart) = (false, None);
        self.pongs.clear();
        self.queue.begin(now);
    }

    /// Keeps what a ping said, to be returned; not too many.
    pub fn add_pong(&mut self, ping: [u8; 8]) {
        if self.pongs.len() < MAX_PONGS {
            self.pongs.push(ping);
        }
    }

    /// Moves what is to be written to `out`. Whether nobody watches for an answer yet.
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

    /// Frames came.
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
            // What happens to the network may be what helps.
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                () = self.shared.to_check.notified() => {}
            }
        }
    }

    async fn serve(&self) -> anyhow::Result<End> {
        {
            // What is said from here on may be too late for this connection.
            let mut state = self.shared.state();
            (state.reconnect, state.check) = (false, false);
        }
        let mut connection = connect::connect(&self.dialer, &self.relays).await?;
        let login = self.seal(connection.server).await?;
        ensure!(!login.is_empty(), "there is no node key to log in with");
        let login_sent = Instant::now();
        let written = self.log_in(&mut connection, &login);
        timeout(LOGIN_TIMEOUT, written).await.context("no login in time")??;
        self.shared.state().begin(Instant::now());
        serve::serve(connection, login_sent, self.id, &self.shared, &self.events).await
    }

    /// The contents of the login.
    async fn seal(&self, server: [u8; 32]) -> anyhow::Result<Bytes> {
        let (reply, sealed) = oneshot::channel();
        let event = Event::Login { region: self.id, server, reply };
        self.events.send(event).await.context("the agent ends")?;
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

/// From half of it to all of it, so that not all clients of a relay return together.
fn jittered(wait: Duration) -> Duration {
    let number = SysRng.try_next_u32().unwrap_or(0);
    wait / 2 + wait.mul_f64(f64::from(number) / f64::from(u32::MAX)) / 2
}
