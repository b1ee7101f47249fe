//! The clock and the waits of the data path.

use std::{os::fd::BorrowedFd, thread, time::Duration};

use crate::{clock, poll};

/// The system's clock, or, in tests, a virtual one that passes without waiting.
pub trait Clock {
    /// Now, by [`clock::boottime_nanos`].
    fn now(&self) -> u64 {
        clock::boottime_nanos()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Waits until `fd` can be written to, at most for so long.
    fn wait_writable(&self, fd: BorrowedFd<'_>, at_most: Duration) {
        poll::writable(fd, at_most);
    }
}
