//! When to look at the files that say who answers questions about names: others write them too, as
//! a DHCP client does where a machine comes to another network.

use std::{io, os::fd::BorrowedFd, time::Duration};

use host::dns;
use sys::{FileChanges, clock};

/// From a change to the look at it: some write a file in several steps.
const SETTLE: Duration = Duration::from_secs(1);
/// The longest pause, where somebody writes again and again over what stands there.
const LONGEST: Duration = Duration::from_secs(60);

/// Watches the files.
pub(in super::super) struct NameFiles {
    changes: FileChanges,
    pace: Pace,
}

impl NameFiles {
    /// Watches those that there are.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn new() -> io::Result<Self> {
        let mut files = Self { changes: dns::watch_changes()?, pace: Pace::default() };
        files.schedule_poll();
        Ok(files)
    }

    /// Readable when [`Self::handle_events`] has events to read. `None` if changes are not reported.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.changes.readable()
    }

    /// Schedules a check if changes are not reported.
    fn schedule_poll(&mut self) {
        if self.changes.readable().is_none() {
            self.pace.due.get_or_insert(now() + LONGEST);
        }
    }

    /// Reads what is readable.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn handle_events(&mut self) -> io::Result<()> {
        if self.changes.has_changed()? {
            self.pace.handle_change(now());
        }
        Ok(())
    }

    /// How long until a look is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.pace.due.map(|due| due.saturating_sub(now()))
    }

    /// Takes a look that is due.
    pub fn take_due(&mut self) -> bool {
        let is_due = self.pace.take_due(now());
        self.schedule_poll();
        is_due
    }

    /// It was found that somebody wrote over what stood there, which is written again.
    pub fn handle_overwritten(&mut self) {
        self.pace.handle_overwritten(now());
    }
}

fn now() -> Duration {
    clock::boottime()
}

/// When to look.
struct Pace {
    due: Option<Duration>,
    pause: Duration,
    /// When it was last found overwritten.
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
    fn a_change_is_looked_at_once_when_it_has_settled() {
        let mut pace = Pace::default();
        assert!(!pace.take_due(SECOND));
        pace.handle_change(SECOND);
        pace.handle_change(SECOND + SETTLE / 2);
        assert!(!pace.take_due(SECOND));
        assert!(pace.take_due(SECOND + SETTLE));
        assert!(!pace.take_due(SECOND + SETTLE));
    }

    #[test]
    fn somebody_who_writes_again_and_again_is_answered_ever_less_often() {
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
        assert_eq!(pace.pause, SETTLE, "it was quiet for a while");
    }
}
