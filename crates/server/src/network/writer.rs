//! The one task that changes the state. What others have written is read before it writes itself,
//! and what it did is taken back where they were first:
//!
//! ```text
//!   alone:       run ──► commit
//!   contended:   turn (others wait) ──► apply ──► run ──► commit
//!   no answer:   undo; what needs no write is done meanwhile; then turn, all is compared, and either
//!                the last commit is found there or its commands run anew
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
    BATCH, Network,
    command::{Command, Done},
};
use crate::{
    clock::now,
    counted::Counted,
    store::{Committed, Shared, Tail, Trouble, trouble_of},
};

/// How often a batch is tried anew, when it is no conflict that a turn helps against.
const TRIES: u32 = 20;
/// The most commands in a turn, which comes seldom: those that waited for it, and a full queue.
const TURN: usize = 2 * BATCH;
/// The longest wait for what time does.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long a command waits for a database that is gone: a failover takes some seconds.
const PATIENCE: Duration = Duration::from_secs(25);
/// The same for one that answers and takes no changes, as one that is about to hand over does.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// The most commands that wait so.
const MOST: usize = 4 * BATCH;
/// Between tries to reach a database.
const WAITS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

const UNKNOWN: &str =
    "the database does not answer, and it is not known whether it took the change";

/// Changes the state.
pub struct Writer<S> {
    store: S,
    version: i64,
    /// Which run of a database that is of.
    origin: i64,
    network: Weak<Network>,
    behind: Arc<Notify>,
    counted: &'static Counted,
    /// Others write, too, and so it waits for its turn.
    is_contended: bool,
    /// Before the next try to reach a database that took no change.
    wait: Duration,
}

/// Why a batch was not kept.
struct Failure {
    error: Error,
    uncertain: Option<Uncertain>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, uncertain: None }
    }
}

/// A commit whose answer was lost.
struct Uncertain {
    version: i64,
    done: Vec<Done>,
    commands: Vec<Command>,
    redo: Redo,
}

impl<S: Shared> Writer<S> {
    /// For a network whose state has this version of the database of this origin.
    pub fn new(store: S, (version, origin): (i64, i64), network: &Arc<Network>) -> Self {
        let behind = Arc::clone(&network.behind);
        let counted = network.counted;
        let network = Arc::downgrade(network);
        let wait = WAITS[0];
        counted.version.set(version);
        Self { store, version, origin, network, behind, counted, is_contended: false, wait }
    }

    /// Runs commands until none can come any more.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
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
                true => self.read_on(&network).await,
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
        network: &Network,
        batch: &mut Vec<Command>,
        queue: &mut mpsc::Receiver<Command>,
    ) -> Result<(), Failure> {
        for _ in 0..TRIES {
            if self.is_contended {
                self.take_turn(network).await?;
                // What came while it was waited for need not wait for the next.
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
                    self.counted.conflicts.add(1);
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
            self.counted.commands.add(batch.len() as u64);
            done.into_iter().for_each(|done| done());
            batch.clear();
            return Ok(());
        }
        Err(Error::msg("others write to the store all the time").into())
    }

    async fn commit(&mut self, writes: &[Stored]) -> anyhow::Result<Committed> {
        if writes.is_empty() {
            self.store.leave().await;
            return Ok(Committed::At(self.version));
        }
        let begun = Instant::now();
        let outcome = self.store.commit((self.version, self.origin), writes).await;
        match &outcome {
            Ok(Committed::At(_)) => self.counted.commits.note(begun.elapsed()),
            Ok(Committed::Conflict) => {}
            Ok(Committed::Unknown(_)) | Err(_) => self.counted.failures.add(1),
        }
        outcome
    }

    fn moved_to(&mut self, version: i64) {
        self.version = version;
        self.counted.version.set(version);
    }

    async fn take_turn(&mut self, network: &Network) -> Result<(), Failure> {
        let tail = self.store.turn(self.version).await?;
        self.is_contended = tail.version != self.version;
        self.take(network, &tail)?;
        Ok(())
    }

    async fn read_on(&mut self, network: &Network) -> Result<(), Failure> {
        // A request that comes while it is read may have to be told what comes later.
        let asked = network.asked.load(Relaxed);
        let tail = self.store.tail(self.version).await?;
        self.take(network, &tail)?;
        network.looked.send_replace(asked);
        Ok(())
    }

    fn take(&mut self, network: &Network, tail: &Tail) -> anyhow::Result<()> {
        if tail.origin != self.origin {
            bail!("the database began anew, or another one answers");
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

    /// Waits until the database answers again. False: nobody waits for that any more.
    async fn recover(
        &mut self,
        network: &Network,
        failure: Failure,
        pending: &mut Vec<Command>,
        queue: &mut mpsc::Receiver<Command>,
    ) -> bool {
        let Failure { mut error, mut uncertain } = failure;
        if self.wait == WAITS[0] {
            tracing::warn!("the database is waited for: {error:#}");
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

    /// A command that writes nothing is not kept waiting.
    fn run_alone(&self, network: &Network, mut command: Command, pending: &mut Vec<Command>) {
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
                self.counted.commands.add(1);
                network.publish(self.version, false);
                done();
            }
            None if pending.len() < MOST => pending.push(command),
            None => command.refuse(Trouble::Gone.words()),
        }
    }

    /// Has the state be what the database has, which may have lost something.
    async fn compare(
        &mut self,
        network: &Network,
        uncertain: &mut Option<Uncertain>,
        pending: &mut Vec<Command>,
    ) -> anyhow::Result<()> {
        let asked = network.asked.load(Relaxed);
        let all = self.store.turn(-1).await?;
        network.write(|state| state.reconcile(all.objects, all.origin, now()))?;
        self.origin = all.origin;
        self.moved_to(all.version);
        network.publish(self.version, true);
        network.looked.send_replace(asked);
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

/// Answers the commands that have waited for too long.
fn refuse_late(error: &Error, pending: &mut Vec<Command>, uncertain: &mut Option<Uncertain>) {
    let trouble = trouble_of(error);
    let patience = if trouble == Trouble::Gone { PATIENCE } else { SHORT_PATIENCE };
    for late in pending.extract_if(.., |one| one.since.elapsed() >= patience) {
        late.refuse(trouble.words());
    }
    let is_late =
        |one: &Uncertain| one.commands.iter().any(|command| command.since.elapsed() >= PATIENCE);
    if let Some(Uncertain { commands, .. }) = uncertain.take_if(|one| is_late(one)) {
        commands.into_iter().for_each(|late| late.refuse(UNKNOWN));
    }
}
