//! How many rounds a half has finished, whichever thread works for it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::take_turns;

/// One thread at a time counts, any may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Arc<AtomicU64>);

impl Rounds {
    pub fn count(&self) {
        // No other thread writes: no locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A step of a half that has a thread to itself. Returns whether more waits, behind which others
    /// have had their turn.
    pub fn step(&self, step: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        let more = step()?;
        self.count();
        if more {
            take_turns();
        }
        Ok(more)
    }

    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
