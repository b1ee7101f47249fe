//! Ends the wait of a receiving half from any thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags},
    sys::eventfd::{EfdFlags, EventFd},
};

use crate::poll;

/// A wake-up flag, which is an eventfd. Clones share it. It stays set until a wait ends by it, so
/// that wake-ups between two waits are not lost.
#[derive(Clone, Debug)]
pub struct Wake(Arc<EventFd>);

impl Wake {
    /// Creates a flag that is not set.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Ends the current or the next wait.
    pub fn wake(&self) {
        // This fails only if the counter is full, and then the flag is set.
        let _ = self.0.write(1);
    }

    /// A waker for the half-traits.
    pub fn waker(&self) -> packet::Waker {
        let wake = self.clone();
        Arc::new(move || wake.wake())
    }

    /// Clears the flag. Returns whether it was set.
    pub fn clear(&self) -> bool {
        self.0.read().is_ok()
    }

    /// Waits until `fd` is readable or the flag is set, at most for `at_most`. The flag takes
    /// precedence, and is cleared.
    pub(crate) fn wait(
        &self,
        fd: Option<BorrowedFd<'_>>,
        at_most: Option<Duration>,
    ) -> io::Result<Waited> {
        let wake = PollFd::new(self.as_fd(), PollFlags::POLLIN);
        let Some(fd) = fd else {
            poll::wait(&mut [wake], at_most)?;
            return Ok(if self.clear() { Waited::Woken } else { Waited::TimedOut });
        };
        let mut fds = [wake, PollFd::new(fd, PollFlags::POLLIN)];
        poll::wait(&mut fds, at_most)?;
        if fds[0].any().unwrap_or(true) && self.clear() {
            return Ok(Waited::Woken);
        }
        if fds[1].revents() == Some(PollFlags::empty()) {
            return Ok(Waited::TimedOut);
        }
        let events = fds[1].revents().unwrap_or(PollFlags::POLLERR);
        if events.contains(PollFlags::POLLIN) { Ok(Waited::Readable) } else { Ok(Waited::Failed) }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Woken,
    Readable,
    /// The time has passed.
    TimedOut,
    /// An error or a hang-up is pending, without data.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_before_a_wait_ends_only_that_wait() {
        let wake = Wake::new().unwrap();
        let waker = wake.waker();
        waker();
        waker();
        assert_eq!(wake.wait(None, None).unwrap(), Waited::Woken);
        assert!(!wake.clear());
    }

    #[test]
    fn wait_for_only_the_flag_times_out() {
        let wake = Wake::new().unwrap();
        assert_eq!(wake.wait(None, Some(Duration::ZERO)).unwrap(), Waited::TimedOut);
    }
}
