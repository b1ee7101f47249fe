//! Time as the data path reads and spends it.

use std::{os::fd::BorrowedFd, thread, time::Duration};

use crate::{clock, poll};

/// The system's time, or, in tests, one that passes without waiting.
pub trait Time {
    /// Now, by [`clock::boottime_nanos`].
    fn now(&self) -> u64 {
        clock::boottime_nanos()
    }

    /// Waits for so long.
    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Waits until `fd` takes data again, at most for so long.
    fn wait_writable(&self, fd: BorrowedFd<'_>, at_most: Duration) {
        poll::writable(fd, at_most);
    }
}
