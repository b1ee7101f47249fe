//! In-memory database of the model's servers, with delays, faults and failover.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::anyhow;
use coordinator::object::{Kind, Stored};
use tokio::{sync::OwnedMutexGuard, time::sleep};

use super::Dice;
use crate::store::{Committed, Database, Tail};

/// The database.
pub(super) struct Memory {
    /// The writer and the objects of each version.
    all: Vec<(u64, Vec<Stored>)>,
    /// ID of the database.
    origin: i64,
    pub version: i64,
    pub rows: BTreeMap<(Kind, i64), (i64, Stored)>,
    written: HashMap<u64, i64>,
    pub dice: Dice,
    /// One in this number of operations fails.
    pub faults: u64,
}

impl Memory {
    pub(super) fn new(dice: Dice) -> Self {
        Self {
            all: Vec::new(),
            origin: 1,
            version: 0,
            rows: BTreeMap::new(),
            written: HashMap::new(),
            dice,
            faults: 0,
        }
    }

    fn write(&mut self, writer: u64, expected: (i64, i64), writes: &[Stored]) -> bool {
        if (self.version, self.origin) != expected {
            return false;
        }
        self.all.push((writer, writes.to_vec()));
        self.put(writer, writes);
        true
    }

    fn put(&mut self, writer: u64, writes: &[Stored]) {
        self.version += 1;
        self.written.insert(writer, self.version);
        for stored in writes {
            self.rows.insert((stored.kind, stored.id), (self.version, stored.clone()));
        }
    }

    /// Another database takes over, which lacks the last versions.
    pub(super) fn fail_over(&mut self, lost: usize) {
        self.origin += 1;
        self.all.truncate(self.all.len().saturating_sub(lost));
        (self.version, self.rows, self.written) = (0, BTreeMap::new(), HashMap::new());
        for (writer, writes) in self.all.clone() {
            self.put(writer, &writes);
        }
    }

    fn fails(&mut self) -> bool {
        self.faults > 0 && self.dice.roll(self.faults) == 0
    }
}

/// A server's connection to the database.
pub(super) struct Connection {
    memory: Arc<Mutex<Memory>>,
    lock: Arc<tokio::sync::Mutex<()>>,
    writer: u64,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Connection {
    pub(super) fn new(
        memory: Arc<Mutex<Memory>>,
        lock: Arc<tokio::sync::Mutex<()>>,
        writer: u64,
    ) -> Self {
        Self { memory, lock, writer, turn: None }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn delay(&self) {
        let milliseconds = self.memory().dice.roll(4);
        sleep(Duration::from_millis(milliseconds)).await;
    }
}

impl Database for Connection {
    async fn tail(&mut self, since: i64) -> anyhow::Result<Tail> {
        self.delay().await;
        let mut memory = self.memory();
        if memory.fails() {
            return Err(anyhow!("a fault"));
        }
        let new = memory.rows.values().filter(|(version, _)| *version > since);
        let objects = new.map(|(_, stored)| stored.clone()).collect();
        let written = memory.written.get(&self.writer).copied().unwrap_or_default();
        Ok(Tail { version: memory.version, written, origin: memory.origin, objects })
    }

    async fn turn(&mut self, since: i64) -> anyhow::Result<Tail> {
        let turn = Arc::clone(&self.lock).lock_owned().await;
        let tail = self.tail(since).await?;
        self.turn = Some(turn);
        Ok(tail)
    }

    async fn leave(&mut self) {
        self.turn = None;
    }

    async fn commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> anyhow::Result<Committed> {
        let turn = match self.turn.take() {
            Some(turn) => turn,
            None => Arc::clone(&self.lock).lock_owned().await,
        };
        self.delay().await;
        let (fails, how) = {
            let mut memory = self.memory();
            (memory.fails(), memory.dice.roll(4))
        };
        let lost = || Ok(Committed::Unknown(anyhow!("the answer was lost")));
        match how {
            _ if !fails => {}
            0 => return Err(anyhow!("a fault")),
            1 => return lost(),
            2 => {
                self.memory().write(self.writer, expected, writes);
                return lost();
            }
            // It is written after its server has given up.
            _ => {
                let (memory, writer) = (Arc::clone(&self.memory), self.writer);
                let writes = writes.to_vec();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(200)).await;
                    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                    memory.write(writer, expected, &writes);
                    drop(turn);
                });
                return lost();
            }
        }
        Ok(match self.memory().write(self.writer, expected, writes) {
            true => Committed::At(expected.0 + 1),
            false => Committed::Conflict,
        })
    }

    async fn close(&mut self) {}
}
