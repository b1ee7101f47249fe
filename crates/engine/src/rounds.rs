//! How many rounds a half has finished, whichever thread works for it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// One thread at a time counts, any may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Arc<AtomicU64>);

impl Rounds {
    pub fn count(&self) {
        // No other thread writes: no locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
