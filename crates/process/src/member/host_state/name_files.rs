//! Schedules checks of the resolver configuration. Other programs write these files, too: for
//! example, a DHCP client does when the machine enters another network.

use std::{io, os::fd::BorrowedFd, time::Duration};

use host::dns;
use sys::{FileChanges, clock};

/// The delay between a change and its check. Some programs write a file in several steps.
const SETTLE: Duration = Duration::from_secs(1);
/// The longest delay, if another program overwrites the files repeatedly.
const LONGEST: Duration = Duration::from_secs(60);

/// Watches the files.
pub(in super::super) struct NameFiles {
    changes: FileChanges,
    pace: Pace,
}

impl NameFiles {
    /// Watches the existing files.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub(crate) fn new() -> io::Result<Self> {
        let mut files = Self { changes: dns::watch_changes()?, pace: Pace::default() };
        files.schedule_poll();
        Ok(files)
    }

    /// Readable when [`Self::handle_events`] has events to read. `None` if changes are not reported.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.changes.readable()
    }

    /// Schedules a check if changes are not reported.
    fn schedule_poll(&mut self) {
        if self.changes.readable().is_none() {
            self.pace.due.get_or_insert(now() + LONGEST);
        }
    }

    /// Reads pending events.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub(crate) fn handle_events(&mut self) -> io::Result<()> {
        if self.changes.has_changed()? {
            self.pace.handle_change(now());
        }
        Ok(())
    }

    /// The time until a check is due.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.pace.due.map(|due| due.saturating_sub(now()))
    }

    /// Returns whether a check is due, and resets it.
    pub(crate) fn take_due(&mut self) -> bool {
        let is_due = self.pace.take_due(now());
        self.schedule_poll();
        is_due
    }

    /// Records that another program has overwritten the files, which are written again.
    pub(crate) fn handle_overwritten(&mut self) {
        self.pace.handle_overwritten(now());
    }
}

fn now() -> Duration {
    clock::boottime()
}

/// The schedule of checks.
struct Pace {
    due: Option<Duration>,
    pause: Duration,
    /// Time of the last overwrite.
    overwritten: Option<Duration>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { due: None, pause: SETTLE, overwritten: None }
    }
}

impl Pace {
    fn handle_change(&mut self, now: Duration) {
        self.due.get_or_insert(now + self.pause);
    }

    fn take_due(&mut self, now: Duration) -> bool {
        self.due.take_if(|due| now >= *due).is_some()
    }

    fn handle_overwritten(&mut self, now: Duration) {
        let again = self.overwritten.is_some_and(|last| now < last + 2 * LONGEST);
        self.pause = if again { (self.pause * 2).min(LONGEST) } else { SETTLE };
        self.overwritten = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn change_is_checked_once_after_the_delay() {
        let mut pace = Pace::default();
        assert!(!pace.take_due(SECOND));
        pace.handle_change(SECOND);
        pace.handle_change(SECOND + SETTLE / 2);
        assert!(!pace.take_due(SECOND));
        assert!(pace.take_due(SECOND + SETTLE));
        assert!(!pace.take_due(SECOND + SETTLE));
    }

    #[test]
    fn repeated_overwrites_are_checked_at_growing_intervals() {
        let (mut pace, mut now, mut looks) = (Pace::default(), Duration::ZERO, 0);
        while now < 3600 * SECOND {
            pace.handle_change(now);
            if pace.take_due(now) {
                pace.handle_overwritten(now);
                looks += 1;
            }
            now += SECOND / 10;
        }
        assert!((60..=70).contains(&looks), "{looks}");
        now += 3 * LONGEST;
        pace.handle_overwritten(now);
        assert_eq!(pace.pause, SETTLE, "no overwrite happened for a while");
    }
}
