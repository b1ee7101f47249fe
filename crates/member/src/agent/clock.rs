//! The time of an event. The agent reads no clock while it handles one.

use std::time::Duration;

/// The present time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// On the clock that paths use.
    pub now: Duration,
    /// Since 1970.
    pub wall: Duration,
}

impl Clock {
    pub(super) fn read() -> Self {
        Self { now: sys::clock::boottime(), wall: sys::clock::wall() }
    }
}
