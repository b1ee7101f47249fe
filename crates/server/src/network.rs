//! The network while the server runs: its state, and the one task that changes it.
//!
//! ```text
//!   run(command) ──► queue ──► batch ──► State ──► Shared::commit ──► publish ──► replies, streams
//!                                          ▲            │ others wrote first
//!                                          '── undo, tail ◄┘
//! ```
//!
//! Commands that come while one batch is being written are the next batch, so that a hundred joins
//! cost two flushes of the disk. Nobody is told of a change before it is on the disk.

mod command;
mod followers;
mod leases;
mod writer;

#[cfg(test)]
mod model;

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
    counted::Counted,
    store::{Prober, Shared, Store},
};

/// The most commands in one batch.
const BATCH: usize = 512;
/// How long a stream waits for what another server has told its client already.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The network.
pub struct Network {
    state: RwLock<State>,
    commands: mpsc::Sender<Command>,
    /// There is something to tell.
    published: Notify,
    /// Others have written, or may have.
    behind: Arc<Notify>,
    /// This server has written.
    written: Arc<Notify>,
    /// How often it was asked to read what others wrote, and which of those times it has.
    asked: AtomicU64,
    looked: watch::Sender<u64>,
    /// Whether there may be others.
    is_shared: bool,
    changed: watch::Sender<u64>,
    kept: watch::Sender<u64>,
    version: watch::Sender<i64>,
    /// None for a store that is a model.
    prober: Option<Prober>,
    /// How many followers have read on since they were told last.
    follower_reads: AtomicUsize,
    counted: &'static Counted,
    /// Warnings of the policy that are in the log already.
    remarks: Mutex<Vec<String>>,
}

impl Network {
    /// The network that the store has. The task that is returned changes it, and ends when the
    /// network is dropped.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(
        store: Store,
        settings: Settings,
    ) -> anyhow::Result<(Arc<Self>, impl Future<Output = ()>)> {
        let (watch, prober) = (store.watch(), store.prober());
        let (network, writer) = Self::of(store, settings, watch.is_some(), Some(prober)).await?;
        let weak = Arc::downgrade(&network);
        let all = async move {
            let followers = followers::tell(weak.clone());
            match watch {
                Some(watch) => tokio::select! {
                    () = writer => {}
                    () = followers => {}
                    () = leases::keep(watch, weak) => {}
                },
                None => tokio::select! {
                    () = writer => {}
                    () = followers => {}
                },
            }
        };
        Ok((network, all))
    }

    async fn of<S: Shared>(
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
            asked: AtomicU64::new(0),
            looked: watch::Sender::new(0),
            is_shared,
            changed: watch::Sender::new(0),
            kept: watch::Sender::new(0),
            version: watch::Sender::new(loaded.version),
            prober,
            follower_reads: AtomicUsize::new(0),
            counted: Counted::begin(),
            remarks: Mutex::default(),
        });
        let writer = Writer::new(store, (loaded.version, loaded.origin), &network);
        Ok((network, writer.run(queue)))
    }

    /// Runs a command, and returns what it returned once that is kept.
    ///
    /// # Errors
    /// It could not be kept: nothing happened, unless the error says that it is not known.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnMut(&mut State, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (command, outcome) = Command::new(command);
        let sent = self.commands.send(command).await;
        sent.ok().context("the server is about to end")?;
        outcome.await.context("the server is about to end")?
    }

    /// Whether commands are answered, and the store takes a write.
    ///
    /// # Errors
    /// The store does not, or the server is about to end.
    pub async fn probe(&self) -> anyhow::Result<()> {
        self.run(|_, _| ()).await?;
        match &self.prober {
            Some(prober) => prober.probe().await,
            None => Ok(()),
        }
    }

    /// What is counted of it.
    pub(crate) fn counted(&self) -> &'static Counted {
        self.counted
    }

    /// Warns of names in the policy that match no user, and of parts that are left out. Untrusted names of a provider are in the log
    /// each time, others once.
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
                "these names in the policy match no user: {names}. Users have them from the provider, and may \
                 have chosen them. Name users by address, or set `oidc.trust_usernames`"
            );
        }
    }

    /// Looks at the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the network's version is this, for as long as it is likely to come: another server
    /// may have told of it already.
    pub async fn catch_up(&self, version: i64) {
        let mut known = self.version.subscribe();
        if *known.borrow() < version {
            self.behind.notify_one();
            // It may be a number that nobody ever told.
            let _ = timeout(CATCH_UP, known.wait_for(|known| *known >= version)).await;
        }
    }

    /// Reads what others have written, if there may be others: what is not known here may be known
    /// there. Whether it was read.
    pub async fn read_on(&self) -> bool {
        if !self.is_shared {
            return true;
        }
        let mut looked = self.looked.subscribe();
        let own = self.asked.fetch_add(1, Relaxed) + 1;
        self.behind.notify_one();
        timeout(CATCH_UP, looked.wait_for(|looked| *looked >= own)).await.is_ok()
    }

    /// Tells when anything is another than it was, what no client is told of included.
    pub fn kept(&self) -> watch::Receiver<u64> {
        self.kept.subscribe()
    }

    /// Tells when something changed, and how far the log is to be read then. All who follow read as
    /// far, so that they are told the same.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A follower has read what there is.
    pub fn note_read(&self) {
        self.follower_reads.fetch_add(1, Relaxed);
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was done is kept: followers may know.
    fn publish(&self, version: i64, has_written: bool) {
        let has_published = self.write(|state| state.publish(version, now()));
        if has_published {
            self.published.notify_one();
        }
        if has_published || has_written {
            self.kept.send_modify(|number| *number += 1);
        }
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
    }
}
