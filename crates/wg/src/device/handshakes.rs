//! How many handshakes that we began were answered, and how long that took.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counted by the control half, of all peers together.
#[derive(Debug, Default)]
pub struct HandshakeCounts {
    answered: AtomicU64,
    micros: AtomicU64,
}

impl HandshakeCounts {
    /// How many initiations of ours had their response.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Microseconds from an initiation to its response, all of them together.
    pub fn micros(&self) -> u64 {
        self.micros.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, took: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}
