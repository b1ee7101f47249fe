//! Counts of answered handshakes and their durations.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Handshakes that this device started, of all peers together.
#[derive(Debug, Default)]
pub struct HandshakeCounts {
    answered: AtomicU64,
    micros: AtomicU64,
}

impl HandshakeCounts {
    /// Number of sent initiations that were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Sum of the times from initiation to response, in microseconds.
    pub fn micros(&self) -> u64 {
        self.micros.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, took: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}
