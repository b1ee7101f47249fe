//! Work that many events ask for, and that is done now and then for all of them.

use std::time::Duration;

/// After work that took some time, all else has this many times as long.
pub(super) const REST_FACTOR: u32 = 4;

/// When the work is done: at once, or after a rest from the last time.
pub(super) struct Throttle {
    /// The shortest time from one beginning to the next.
    pause: Duration,
    begun: Option<Duration>,
    /// The earliest time of the next one.
    next: Duration,
    due: Option<Duration>,
}

impl Throttle {
    /// Work that was not done yet.
    pub const fn new(pause: Duration) -> Self {
        Self { pause, begun: None, next: Duration::ZERO, due: None }
    }

    /// Something asks for the work.
    pub fn request(&mut self, now: Duration) {
        let at = self.next.max(now);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The work is due at this time, whatever was requested before.
    pub fn set_due(&mut self, due: Option<Duration>) {
        self.due = due;
    }

    /// When the work is due.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Whether the work is due now.
    pub fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// The work begins. It covers all requests until now.
    pub fn begin(&mut self, now: Duration) {
        self.due = None;
        self.begun = Some(now);
        self.next = self.next.max(now + self.pause);
    }

    /// The work that began at a time is done, if it is what began then.
    pub fn handle_done(&mut self, began: Duration, now: Duration) {
        if self.begun == Some(began) {
            self.next = now + self.pause.max(now.saturating_sub(began) * REST_FACTOR);
        }
    }
}
