//! The clock and the waits of the data path.

use std::{os::fd::BorrowedFd, thread, time::Duration};

use crate::{clock, poll};

/// The system's clock, or a virtual one in tests, which do not wait.
pub trait Clock {
    /// The current time, by default [`clock::boottime_nanos`].
    fn now(&self) -> u64 {
        clock::boottime_nanos()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Waits until `fd` is writable, at most for `at_most`.
    fn wait_writable(&self, fd: BorrowedFd<'_>, at_most: Duration) {
        poll::writable(fd, at_most);
    }
}
