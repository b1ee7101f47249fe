//! The task that changes the state. It reads the changes of other servers before it writes, and
//! undoes its own changes after a conflict:
//!
//! ```text
//!   alone:       run ──► commit
//!   contended:   turn (others wait) ──► apply ──► run ──► commit
//!   no answer:   undo; commands without writes still run; then turn and compare everything: either the
//!                last commit is found, or its commands run again
//! ```

use std::{
    mem,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Error, bail};
use coordinator::{Redo, State, object::Stored};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until},
};

use super::{
    BATCH, NetworkState,
    command::{Command, Done},
};
use crate::{
    clock::now,
    network::counters::Counters,
    store::{Committed, Database, FailureKind, Tail, failure_kind},
};

/// Number of attempts of a batch that conflicts repeatedly.
const TRIES: u32 = 20;
/// Maximum number of commands in a turn: those that waited for it, and a full queue.
const TURN: usize = 2 * BATCH;
/// Maximum time between two checks for timeouts.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long a command waits for an unavailable database. A failover takes some seconds.
const PATIENCE: Duration = Duration::from_secs(25);
/// The same for a database that answers but accepts no changes, such as one before a switchover.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of commands that wait for the database.
const MOST: usize = 4 * BATCH;
/// Minimum and maximum pause between two attempts to reach the database.
const WAITS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

const UNKNOWN: &str =
    "the database does not answer, and it is unknown whether it applied the change";

/// The task that changes the state.
pub(super) struct Writer<S> {
    store: S,
    version: i64,
    /// The database's ID of this version.
    origin: i64,
    network: Weak<NetworkState>,
    behind: Arc<Notify>,
    counters: &'static Counters,
    /// Whether other servers write as well, so that a turn is needed.
    is_contended: bool,
    /// Pause before the next attempt to reach the database.
    wait: Duration,
}

/// Why a batch was not committed.
struct Failure {
    error: Error,
    uncertain: Option<Uncertain>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, uncertain: None }
    }
}

/// A commit without an answer.
struct Uncertain {
    version: i64,
    done: Vec<Done>,
    commands: Vec<Command>,
    redo: Redo,
}

impl<S: Database> Writer<S> {
    /// Creates the writer of a network whose state has this version of this database.
    pub(super) fn new(
        store: S,
        (version, origin): (i64, i64),
        network: &Arc<NetworkState>,
    ) -> Self {
        let behind = Arc::clone(&network.behind);
        let counters = network.counters;
        let network = Arc::downgrade(network);
        let wait = WAITS[0];
        counters.version.set(version);
        Self { store, version, origin, network, behind, counters, is_contended: false, wait }
    }

    /// Runs commands until the queue is closed.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let mut batch = Vec::new();
        'all: while let Some(network) = self.network.upgrade() {
            let due = network.read(State::next_timeout);
            drop(network);
            let rest = due.map_or(LONGEST_SLEEP, |due| due.since(now()).min(LONGEST_SLEEP));
            let is_behind = tokio::select! {
                taken = queue.recv_many(&mut batch, BATCH) => match taken {
                    0 => break,
                    _ => false,
                },
                () = self.behind.notified() => true,
                () = sleep(rest) => false,
            };
            let Some(network) = self.network.upgrade() else { break };
            let mut outcome = match is_behind {
                true => self.refresh(&network).await,
                false => Ok(()),
            };
            loop {
                if outcome.is_ok() {
                    outcome = self.apply(&network, &mut batch, &mut queue).await;
                }
                let Err(failure) = outcome else { break };
                if !self.recover(&network, failure, &mut batch, &mut queue).await {
                    break 'all;
                }
                outcome = Ok(());
            }
        }
        self.store.close().await;
    }

    async fn apply(
        &mut self,
        network: &NetworkState,
        batch: &mut Vec<Command>,
        queue: &mut mpsc::Receiver<Command>,
    ) -> Result<(), Failure> {
        for _ in 0..TRIES {
            if self.is_contended {
                self.take_turn(network).await?;
                // Commands that arrived in the meantime run in the same turn.
                while batch.len() < TURN
                    && let Ok(command) = queue.try_recv()
                {
                    batch.push(command);
                }
            }
            let (writes, done) = network.write(|state| {
                let now = now();
                state.handle_timeout(now);
                let done: Vec<Done> = batch.iter_mut().map(|one| one.run(state, now)).collect();
                (state.take_writes(), done)
            });
            match self.commit(&writes).await {
                Ok(Committed::At(version)) => self.moved_to(version),
                Ok(Committed::Conflict) => {
                    self.counters.conflicts.add(1);
                    network.write(|state| state.undo(now()));
                    self.is_contended = true;
                    continue;
                }
                Ok(Committed::Unknown(error)) => {
                    let redo = network.write(|state| state.undo(now()));
                    let (version, commands) = (self.version + 1, mem::take(batch));
                    let uncertain = Some(Uncertain { version, done, commands, redo });
                    return Err(Failure { error, uncertain });
                }
                Err(error) => {
                    network.write(|state| state.undo(now()));
                    return Err(error.into());
                }
            }
            network.publish(self.version, !writes.is_empty());
            if !writes.is_empty() {
                network.written.notify_one();
                self.wait = WAITS[0];
            }
            self.counters.commands.add(batch.len() as u64);
            done.into_iter().for_each(|done| done());
            batch.clear();
            return Ok(());
        }
        Err(Error::msg("too many conflicts with other servers").into())
    }

    async fn commit(&mut self, writes: &[Stored]) -> anyhow::Result<Committed> {
        if writes.is_empty() {
            self.store.leave().await;
            return Ok(Committed::At(self.version));
        }
        let begun = Instant::now();
        let outcome = self.store.commit((self.version, self.origin), writes).await;
        match &outcome {
            Ok(Committed::At(_)) => self.counters.commits.observe(begun.elapsed()),
            Ok(Committed::Conflict) => {}
            Ok(Committed::Unknown(_)) | Err(_) => self.counters.failures.add(1),
        }
        outcome
    }

    fn moved_to(&mut self, version: i64) {
        self.version = version;
        self.counters.version.set(version);
    }

    async fn take_turn(&mut self, network: &NetworkState) -> Result<(), Failure> {
        let tail = self.store.turn(self.version).await?;
        self.is_contended = tail.version != self.version;
        self.take(network, &tail)?;
        Ok(())
    }

    async fn refresh(&mut self, network: &NetworkState) -> Result<(), Failure> {
        // A request that arrives during the read may need later changes.
        let refresh_requests = network.refresh_requests.load(Relaxed);
        let tail = self.store.tail(self.version).await?;
        self.take(network, &tail)?;
        network.refreshed.send_replace(refresh_requests);
        Ok(())
    }

    fn take(&mut self, network: &NetworkState, tail: &Tail) -> anyhow::Result<()> {
        if tail.origin != self.origin {
            bail!("the database was restarted or replaced");
        }
        if tail.version < self.version {
            bail!("the database has lost changes: it has version {}", tail.version);
        }
        if tail.version > self.version {
            network.write(|state| state.apply(&tail.objects, now()))?;
            self.moved_to(tail.version);
            network.publish(self.version, true);
        }
        Ok(())
    }

    /// Waits until the database answers again. Returns false if the queue was closed.
    async fn recover(
        &mut self,
        network: &NetworkState,
        failure: Failure,
        pending: &mut Vec<Command>,
        queue: &mut mpsc::Receiver<Command>,
    ) -> bool {
        let Failure { mut error, mut uncertain } = failure;
        if self.wait == WAITS[0] {
            tracing::warn!("waiting for the database: {error:#}");
        }
        let mut fresh = Vec::new();
        loop {
            self.store.leave().await;
            let at = Instant::now() + self.wait;
            self.wait = (self.wait * 2).min(WAITS[1]);
            loop {
                refuse_late(&error, pending, &mut uncertain);
                tokio::select! {
                    taken = queue.recv_many(&mut fresh, BATCH) => if taken == 0 {
                        return false;
                    },
                    () = sleep_until(at) => break,
                }
                fresh.drain(..).for_each(|one| self.run_alone(network, one, pending));
            }
            match self.compare(network, &mut uncertain, pending).await {
                Ok(()) => break,
                Err(other) => error = other,
            }
        }
        self.store.leave().await;
        tracing::info!("the database answers again");
        true
    }

    /// Runs a command at once if it writes nothing.
    fn run_alone(&self, network: &NetworkState, mut command: Command, pending: &mut Vec<Command>) {
        let done = network.write(|state| {
            let done = command.run(state, now());
            if state.take_writes().is_empty() {
                return Some(done);
            }
            state.undo(now());
            None
        });
        match done {
            Some(done) => {
                self.counters.commands.add(1);
                network.publish(self.version, false);
                done();
            }
            None if pending.len() < MOST => pending.push(command),
            None => command.refuse(FailureKind::Gone.words()),
        }
    }

    /// Makes the state equal to the database, which may have lost changes.
    async fn compare(
        &mut self,
        network: &NetworkState,
        uncertain: &mut Option<Uncertain>,
        pending: &mut Vec<Command>,
    ) -> anyhow::Result<()> {
        let refresh_requests = network.refresh_requests.load(Relaxed);
        let all = self.store.turn(-1).await?;
        network.write(|state| state.reconcile(all.objects, all.origin, now()))?;
        self.origin = all.origin;
        self.moved_to(all.version);
        network.publish(self.version, true);
        network.refreshed.send_replace(refresh_requests);
        let Some(Uncertain { version, done, commands, redo }) = uncertain.take() else {
            return Ok(());
        };
        if all.written == version {
            network.write(|state| state.redo(redo, now()));
            network.publish(self.version, true);
            done.into_iter().for_each(|done| done());
        } else {
            pending.splice(0..0, commands);
        }
        Ok(())
    }
}

/// Refuses commands that have waited for too long.
fn refuse_late(error: &Error, pending: &mut Vec<Command>, uncertain: &mut Option<Uncertain>) {
    let kind = failure_kind(error);
    let patience = if kind == FailureKind::Gone { PATIENCE } else { SHORT_PATIENCE };
    for late in pending.extract_if(.., |one| one.since.elapsed() >= patience) {
        late.refuse(kind.words());
    }
    let is_late =
        |one: &Uncertain| one.commands.iter().any(|command| command.since.elapsed() >= PATIENCE);
    if let Some(Uncertain { commands, .. }) = uncertain.take_if(|one| is_late(one)) {
        commands.into_iter().for_each(|late| late.refuse(UNKNOWN));
    }
}
