//! Time is a parameter: the stack's protocols read no clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// An instant of a monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(u64);

impl Time {
    /// Later than all other instants.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// The instant `since` the clock's start.
    pub(crate) fn new(since: Duration) -> Self {
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Time from `earlier` to this instant, or zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds since the clock's start.
    pub(crate) fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Nanoseconds since the clock's start.
    pub(crate) fn as_nanos(self) -> u64 {
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

    /// Saturates at the clock's start.
    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}
