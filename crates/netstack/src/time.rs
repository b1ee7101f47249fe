//! Time, as a parameter: the stack's protocols read no clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment on a clock that never steps back, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// Later than all others.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `since` the clock's start.
    pub fn new(since: Duration) -> Self {
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time from `earlier` to here; zero where it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds since the clock's start.
    pub fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Nanoseconds since the clock's start.
    pub fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    /// Not before the clock's start.
    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}
