//! Time as a parameter: the protocol reads no clock.

use std::{num::NonZeroU64, ops::Add, time::Duration};

/// A time on a clock that never steps back and continues during suspend (`CLOCK_BOOTTIME`), in
/// nanoseconds. It is never zero, so that zero can mean "never" in an atomic and in an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

impl Time {
    /// The time `nanos` after the clock's start.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }

    /// Nanoseconds since the clock's start.
    pub fn as_nanos(self) -> u64 {
        self.0.get()
    }

    /// The duration from `earlier` to this time. Zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The two clocks a handshake needs.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For all intervals.
    pub time: Time,
    /// Since the Unix epoch, for TAI64N timestamps and for display. This clock may step.
    pub wall: Duration,
}
