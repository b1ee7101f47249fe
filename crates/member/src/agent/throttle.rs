//! Limits how often work is done that many events request.

use std::time::Duration;

/// The pause after work is this many times as long as the work.
pub(super) const REST_FACTOR: u32 = 4;

/// The next time of the work: at once, or after a pause.
pub(super) struct Throttle {
    /// The shortest interval between two starts.
    pause: Duration,
    begun: Option<Duration>,
    /// The earliest time of the next start.
    next: Duration,
    due: Option<Duration>,
}

impl Throttle {
    pub(super) const fn new(pause: Duration) -> Self {
        Self { pause, begun: None, next: Duration::ZERO, due: None }
    }

    /// Requests the work.
    pub(super) fn request(&mut self, now: Duration) {
        let at = self.next.max(now);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Sets the time of the work, whatever was requested before.
    pub(super) fn set_due(&mut self, due: Option<Duration>) {
        self.due = due;
    }

    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// The work starts. It covers all requests until now.
    pub(super) fn begin(&mut self, now: Duration) {
        self.due = None;
        self.begun = Some(now);
        self.next = self.next.max(now + self.pause);
    }

    /// The work that started at `began` is done. Ignored if it is not the last one.
    pub(super) fn handle_done(&mut self, began: Duration, now: Duration) {
        if self.begun == Some(began) {
            self.next = now + self.pause.max(now.saturating_sub(began) * REST_FACTOR);
        }
    }
}
