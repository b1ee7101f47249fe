//! The only access to the system's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordinator::Time;

/// The current time.
#[expect(clippy::disallowed_methods, reason = "this is the clock's room")]
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Time::default().after(since)
}
