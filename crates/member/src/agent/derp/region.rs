//! One region: connected while it is home or has datagrams, and retried after a failure.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use getrandom::{SysRng, rand_core::TryRng as _};
use tailnet::{
    derp::{kind, write_frame},
    map_messages::DerpRegion,
};
use tokio::{
    io::AsyncWriteExt,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Event,
    connect::{self, Connection},
    serve::{self, End},
    state::{Ended, Shared},
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

/// Controls the task of a region, which ends on drop.
pub(super) struct Handle {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Region {
    id: u16,
    relays: Arc<DerpRegion>,
    dialer: Dialer,
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

/// Starts the task of a region.
pub(super) fn open(
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
    /// The state of the connection, which takes datagrams and requests.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
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
            let Ended { accepted, restart, dropped } = self.shared.end();
            tracing::debug!(region = self.id, dropped, "relay");
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
                () = self.shared.wait_to_check() => {}
            }
        }
    }

    async fn serve(&self) -> anyhow::Result<End> {
        self.shared.start_connecting();
        let mut connection = connect::connect(&self.dialer, &self.relays).await?;
        let login = self.seal(connection.server).await?;
        ensure!(!login.is_empty(), "no node key to log in with");
        let login_sent = Instant::now();
        let written = self.log_in(&mut connection, &login);
        timeout(LOGIN_TIMEOUT, written).await.context("the login timed out")??;
        self.shared.begin(Instant::now());
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
