//! Times in milliseconds since 1970, which the caller passes in.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailnet::map_messages::{format_time, parse_time};

/// Go's zero time, which stands for an absent time.
pub const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// A time in milliseconds since 1970.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Formats the time for Go (RFC 3339).
    pub fn text(self) -> String {
        format_time(Duration::from_millis(self.0))
    }

    /// Parses a time of Go. `None` if it is invalid, or Go's zero time.
    pub fn read(text: &str) -> Option<Self> {
        parse_time(text).map(|time| Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time after this duration.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time before, by this duration.
    #[must_use]
    pub fn before(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The duration since an earlier time; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Formats a time for Go; its zero time if absent.
pub(crate) fn text_or_zero(time: Option<Time>) -> String {
    time.map_or_else(|| ZERO_TIME.to_owned(), Time::text)
}
