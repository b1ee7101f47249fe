//! The network while the server runs: its state, and the one task that changes it.
//!
//! ```text
//!   run(command) ──► queue ──► batch ──► State ──► Store::commit ──► publish ──► replies, streams
//!                                          ▲            │ somebody else wrote
//!                                          '── load ◄───'
//! ```
//!
//! Commands that come while one batch is being written are the next batch, so that a hundred joins
//! cost two flushes of the disk. Nobody hears of a change before it is on the disk.

use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    time::Duration,
};

use anyhow::{Context, bail};
use coordinator::{Settings, State, Time};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::sleep,
};

use crate::{
    clock::now,
    store::{Committed, Store},
};

/// The most commands in one batch.
const BATCH: usize = 512;
/// How often a batch is tried anew, when others write all the time.
const TRIES: u32 = 20;
/// Between two times that followers are told: what changes together is told together. Half of the
/// time is left for other work if telling one of them takes a tenth of a millisecond.
const REST: Duration = Duration::from_millis(50);
const REST_EACH: Duration = Duration::from_micros(200);
/// The longest wait for what time does.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Runs on the state, and then says what is to be done when that is kept.
type Command = Box<dyn FnMut(&mut State, Time) -> Done + Send>;
type Done = Box<dyn FnOnce() + Send>;

/// The network.
pub struct Network {
    state: RwLock<State>,
    commands: mpsc::Sender<Command>,
    /// There is something to tell.
    published: Notify,
    changed: watch::Sender<u64>,
    kept: watch::Sender<u64>,
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
        let loaded = store.load().await?;
        let state = State::load(settings, loaded.objects, now())?;
        let (commands, queue) = mpsc::channel(BATCH);
        let (changed, kept) = (watch::Sender::new(0), watch::Sender::new(0));
        let (state, published) = (RwLock::new(state), Notify::new());
        let network = Arc::new(Self { state, commands, published, changed, kept });
        let weak = Arc::downgrade(&network);
        let writer = Writer { store, version: loaded.version, network: weak.clone() };
        let both = async move {
            tokio::select! {
                () = writer.run(queue) => {}
                () = tell(weak) => {}
            }
        };
        Ok((network, both))
    }

    /// Runs a command, and returns what it returned once that is kept.
    ///
    /// # Errors
    /// It could not be kept: nothing happened.
    pub async fn run<T: Send + 'static>(
        &self,
        mut command: impl FnMut(&mut State, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (reply, outcome) = oneshot::channel();
        // A command is run anew when somebody else has written: only the last time counts.
        let reply = Arc::new(Mutex::new(Some(reply)));
        let command: Command = Box::new(move |state, now| {
            let (value, reply) = (command(state, now), Arc::clone(&reply));
            Box::new(move || {
                let reply = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
                // Who asked may have gone.
                let _ = reply.map(|reply| reply.send(value));
            })
        });
        let sent = self.commands.send(command).await;
        sent.ok().context("the server is about to end")?;
        outcome.await.context("the store did not take the change")
    }

    /// Looks at the state.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
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

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells those who follow that something changed: at once, and the next time after a rest.
async fn tell(network: Weak<Network>) {
    while let Some(network) = network.upgrade() {
        network.published.notified().await;
        let end = network.read(State::end);
        network.changed.send_replace(end);
        let followers = u32::try_from(network.changed.receiver_count()).unwrap_or(u32::MAX);
        drop(network);
        sleep(REST.saturating_add(REST_EACH.saturating_mul(followers))).await;
    }
}

struct Writer {
    store: Store,
    version: i64,
    network: Weak<Network>,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let mut batch = Vec::new();
        while let Some(network) = self.network.upgrade() {
            let due = network.read(State::next_timeout);
            drop(network);
            let rest = due.map_or(LONGEST_SLEEP, |due| due.since(now()).min(LONGEST_SLEEP));
            tokio::select! {
                taken = queue.recv_many(&mut batch, BATCH) => if taken == 0 {
                    break;
                },
                () = sleep(rest) => {}
            }
            let Some(network) = self.network.upgrade() else { break };
            if let Err(error) = self.apply(&network, &mut batch).await {
                // Their replies fall with the commands.
                tracing::error!("{} changes are lost: {error:#}", batch.len());
                self.load_again(&network).await;
            }
            batch.clear();
        }
        self.store.close().await;
    }

    async fn apply(&mut self, network: &Network, batch: &mut [Command]) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let now = now();
            let (writes, done) = network.write(|state| {
                state.handle_timeout(now);
                let done: Vec<Done> = batch.iter_mut().map(|command| command(state, now)).collect();
                (state.take_writes(), done)
            });
            if !writes.is_empty() {
                match self.store.commit(self.version, &writes).await? {
                    Committed::At(version) => self.version = version,
                    Committed::Conflict => {
                        self.load(network).await?;
                        continue;
                    }
                }
            }
            let has_published = network.write(State::publish);
            if has_published {
                network.published.notify_one();
            }
            if has_published || !writes.is_empty() {
                network.kept.send_modify(|number| *number += 1);
            }
            done.into_iter().for_each(|done| done());
            return Ok(());
        }
        bail!("others write to the store all the time")
    }

    async fn load(&mut self, network: &Network) -> anyhow::Result<()> {
        let loaded = self.store.load().await?;
        let settings = network.read(|state| state.settings().clone());
        let state = State::load(settings, loaded.objects, now())?;
        self.version = loaded.version;
        network.write(|old| old.replace(state));
        network.published.notify_one();
        network.kept.send_modify(|number| *number += 1);
        Ok(())
    }

    /// The state has what the store has not.
    async fn load_again(&mut self, network: &Network) {
        while let Err(error) = self.load(network).await {
            tracing::error!("the store cannot be read: {error:#}");
            sleep(Duration::from_secs(1)).await;
        }
    }
}
