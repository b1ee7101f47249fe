//! A running network: its state, and the task that changes it.
//!
//! ```text
//!   run(command) ──► queue ──► batch ──► State ──► Database::commit ──► publish ──► replies, streams
//!                                          ▲            │ conflict
//!                                          '── undo, tail ◄┘
//! ```
//!
//! Commands that arrive while a batch is written form the next batch, so that a hundred joins cost
//! two flushes of the disk. A change is published only when it is on disk.

mod command;
pub(crate) mod counters;
mod followers;
pub(crate) mod health;
mod leases;
mod writer;

#[cfg(test)]
mod model_tests;

use std::sync::{
    Arc, Mutex, PoisonError, RwLock,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use anyhow::Context;
use coordinator::{Settings, State, Time};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Duration, timeout},
};

use self::{command::Command, writer::Writer};
use crate::{
    clock::now,
    network::counters::Counters,
    store::{Database, Prober, Store},
};

/// Maximum number of commands in a batch.
const BATCH: usize = 512;
/// How long a stream waits for changes that another server has already sent to its client.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The state of a network.
pub struct NetworkState {
    state: RwLock<State>,
    commands: mpsc::Sender<Command>,
    /// Notified when changes have been published.
    published: Notify,
    /// Notified when other servers have written, or may have.
    behind: Arc<Notify>,
    /// Notified when this server has written.
    written: Arc<Notify>,
    /// Number of requested refreshes, and the last one that was completed.
    refresh_requests: AtomicU64,
    refreshed: watch::Sender<u64>,
    /// Whether other servers may use the database.
    is_shared: bool,
    changed: watch::Sender<u64>,
    committed: watch::Sender<u64>,
    version: watch::Sender<i64>,
    /// `None` for the in-memory database of a test.
    prober: Option<Prober>,
    /// Number of followers that have read since the last notification.
    follower_reads: AtomicUsize,
    counters: &'static Counters,
    /// Warnings about the policy that are already in the log.
    remarks: Mutex<Vec<String>>,
}

impl NetworkState {
    /// Loads the network from the store. The returned task changes it, and ends when the network
    /// is dropped.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(
        store: Store,
        settings: Settings,
    ) -> anyhow::Result<(Arc<Self>, impl Future<Output = ()>)> {
        let (replicas, prober) = (store.replicas(), store.prober());
        let (network, writer) = Self::of(store, settings, replicas.is_some(), Some(prober)).await?;
        let weak = Arc::downgrade(&network);
        let all = async move {
            let followers = followers::notify_followers(weak.clone());
            match replicas {
                Some(replicas) => tokio::select! {
                    () = writer => {}
                    () = followers => {}
                    () = leases::renew_leases(replicas, weak) => {}
                },
                None => tokio::select! {
                    () = writer => {}
                    () = followers => {}
                },
            }
        };
        Ok((network, all))
    }

    async fn of<S: Database>(
        mut store: S,
        settings: Settings,
        is_shared: bool,
        prober: Option<Prober>,
    ) -> anyhow::Result<(Arc<Self>, impl Future<Output = ()>)> {
        let loaded = store.tail(-1).await?;
        let mut mark = [0; 2];
        getrandom::fill(&mut mark).context("randomness")?;
        let mark = (loaded.version, u16::from_le_bytes(mark));
        let state = State::load(settings, &loaded.objects, mark, now())?;
        let state = RwLock::new(state.with_epoch(loaded.origin));
        let (commands, queue) = mpsc::channel(BATCH);
        let network = Arc::new(Self {
            state,
            commands,
            published: Notify::new(),
            behind: Arc::default(),
            written: Arc::default(),
            refresh_requests: AtomicU64::new(0),
            refreshed: watch::Sender::new(0),
            is_shared,
            changed: watch::Sender::new(0),
            committed: watch::Sender::new(0),
            version: watch::Sender::new(loaded.version),
            prober,
            follower_reads: AtomicUsize::new(0),
            counters: Counters::begin(),
            remarks: Mutex::default(),
        });
        let writer = Writer::new(store, (loaded.version, loaded.origin), &network);
        Ok((network, writer.run(queue)))
    }

    /// Runs a command, and returns its result when its changes are committed.
    ///
    /// # Errors
    /// The changes were not committed, unless the error says that this is unknown.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnMut(&mut State, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (command, outcome) = Command::new(command);
        let sent = self.commands.send(command).await;
        sent.ok().context("the server is about to end")?;
        outcome.await.context("the server is about to end")?
    }

    /// Checks that commands are answered and that the store accepts writes.
    ///
    /// # Errors
    /// The store does not accept writes, or the server is about to end.
    pub async fn probe(&self) -> anyhow::Result<()> {
        self.run(|_, _| ()).await?;
        match &self.prober {
            Some(prober) => prober.probe().await,
            None => Ok(()),
        }
    }

    /// Counters of the network.
    pub(crate) fn counters(&self) -> &'static Counters {
        self.counters
    }

    /// Logs names in the policy that match no user, and ignored parts. Untrusted names of a
    /// provider are logged each time, others once.
    pub fn warn_of_names(&self) {
        let (names, remarks) = self.read(|state| {
            let warnings = [state.left_out(), state.unmatched_policy_names()].concat();
            (state.untrusted_policy_names().join(", "), warnings)
        });
        let mut known = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        for name in remarks.iter().filter(|name| !known.contains(name)) {
            tracing::warn!("the policy: {name}");
        }
        *known = remarks;
        drop(known);
        if !names.is_empty() {
            tracing::warn!(
                "these names in the policy match no user: {names}. They are names at the provider, which users \
                                 may have chosen themselves. Use mail addresses, or set `oidc.trust_usernames`"
            );
        }
    }

    /// Reads the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the network has at least this version, which another server may have sent to
    /// a client. Gives up after [`CATCH_UP`].
    pub async fn catch_up(&self, version: i64) {
        let mut known = self.version.subscribe();
        if *known.borrow() < version {
            self.behind.notify_one();
            // A client may send a version that never existed.
            let _ = timeout(CATCH_UP, known.wait_for(|known| *known >= version)).await;
        }
    }

    /// Reads the changes of other servers, if there may be any. Returns false if this took too
    /// long.
    pub async fn refresh(&self) -> bool {
        if !self.is_shared {
            return true;
        }
        let mut refreshed = self.refreshed.subscribe();
        let own = self.refresh_requests.fetch_add(1, Relaxed) + 1;
        self.behind.notify_one();
        timeout(CATCH_UP, refreshed.wait_for(|refreshed| *refreshed >= own)).await.is_ok()
    }

    /// Changes after each commit, including changes that no client sees.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }

    /// Changes when followers should read the log up to this position. All followers read up to
    /// the same position, so that they send the same frames.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Notes that a follower has read the log.
    pub fn note_read(&self) {
        self.follower_reads.fetch_add(1, Relaxed);
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes committed changes visible to followers.
    fn publish(&self, version: i64, has_written: bool) {
        let has_published = self.write(|state| state.publish(version, now()));
        if has_published {
            self.published.notify_one();
        }
        if has_published || has_written {
            self.committed.send_modify(|number| *number += 1);
        }
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
    }
}
