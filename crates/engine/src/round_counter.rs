//! Counts the finished rounds of a half, on any thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::take_turns;

/// One thread at a time counts, any thread may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Arc<AtomicU64>);

impl Rounds {
    pub(crate) fn count(&self) {
        // A plain store suffices, because no other thread writes.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Runs a step of a half that has its own thread. Returns whether more work waits; in that case
    /// other threads were allowed to run.
    pub(crate) fn step(&self, step: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        let more = step()?;
        self.count();
        if more {
            take_turns();
        }
        Ok(more)
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
