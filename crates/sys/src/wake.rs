//! A wake: what ends the wait of a receiving half, from any thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::{
    poll::{PollFd, PollFlags},
    sys::eventfd::{EfdFlags, EventFd},
};

use crate::poll;

/// A wake, by an eventfd. Clones are the same wake. It stays set until the
/// waiting side has seen it, so that none is lost between two waits.
#[derive(Clone, Debug)]
pub struct Wake(Arc<EventFd>);

impl Wake {
    /// A wake that is not set.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Ends the wait that is, or that comes next.
    pub fn wake(&self) {
        // It fails only where the counter is at its end, and then it is set.
        let _ = self.0.write(1);
    }

    /// The wake as the half-traits hand it out.
    pub fn waker(&self) -> packet::Waker {
        let wake = self.clone();
        Arc::new(move || wake.wake())
    }

    /// Takes the wake back; whether it was set.
    pub fn clear(&self) -> bool {
        self.0.read().is_ok()
    }

    /// Waits until `fd` can be read or the wake is set. A wake goes first, and
    /// is cleared.
    pub(crate) fn wait(&self, fd: Option<BorrowedFd<'_>>) -> io::Result<Waited> {
        let wake = PollFd::new(self.as_fd(), PollFlags::POLLIN);
        let Some(fd) = fd else {
            poll::wait(&mut [wake], None)?;
            self.clear();
            return Ok(Waited::Woken);
        };
        let mut fds = [wake, PollFd::new(fd, PollFlags::POLLIN)];
        poll::wait(&mut fds, None)?;
        if fds[0].any().unwrap_or(true) && self.clear() {
            return Ok(Waited::Woken);
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

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// By the wake.
    Woken,
    /// There is something to read.
    Readable,
    /// There is nothing to read, and an error or a hang-up is pending.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_wait_ends_it_and_only_once() {
        let wake = Wake::new().unwrap();
        let waker = wake.waker();
        waker();
        waker();
        assert_eq!(wake.wait(None).unwrap(), Waited::Woken);
        assert!(!wake.clear());
    }
}
