//! Times: milliseconds since 1970, which come in from outside.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailnet::messages::{format_time, parse_time};

/// Go's way to say that there is no time.
pub const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// A moment, in milliseconds since 1970.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// As Go reads it.
    pub fn text(self) -> String {
        format_time(Duration::from_millis(self.0))
    }

    /// What Go wrote. `None` for what is none, its zero time included.
    pub fn read(text: &str) -> Option<Self> {
        parse_time(text).map(|time| Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Later by so much.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Earlier by so much.
    #[must_use]
    pub fn before(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long it is from an earlier one; nothing if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A moment as Go reads it, or its zero time.
pub fn text_or_zero(time: Option<Time>) -> String {
    time.map_or_else(|| ZERO_TIME.to_owned(), Time::text)
}
