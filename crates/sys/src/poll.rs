//! Waits for several file descriptors at once.

use std::{io, os::fd::BorrowedFd, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout},
};

use crate::clock::boottime_nanos;

/// Waits until some of `fds` are readable, failed or hung up. Returns this state of each; all are
/// `false` after `timeout` has passed.
///
/// # Errors
/// The kernel is out of memory.
pub fn readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    wait(&mut polled, timeout)?;
    Ok(polled.map(|fd| fd.any().unwrap_or(true)))
}

/// Waits until `fd` is readable, failed or hung up, or until `deadline`, in nanoseconds since boot.
/// Returns false if the deadline has passed.
///
/// # Errors
/// The kernel is out of memory.
pub fn readable_until(fd: BorrowedFd<'_>, deadline: u64) -> io::Result<bool> {
    let left = Duration::from_nanos(deadline.saturating_sub(boottime_nanos()));
    Ok(!left.is_zero() && readable([fd], Some(left))? == [true])
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// No data to read.
    Empty,
    Readable,
    /// The other end has closed its socket. Data may be left to read.
    HungUp,
}

/// Polls without waiting.
///
/// # Errors
/// The kernel is out of memory.
pub fn stream_state(fd: BorrowedFd<'_>) -> io::Result<StreamState> {
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    wait(&mut polled, Some(Duration::ZERO))?;
    let events = polled[0].revents().unwrap_or(PollFlags::POLLHUP);
    Ok(if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
        StreamState::HungUp
    } else if events.contains(PollFlags::POLLIN) {
        StreamState::Readable
    } else {
        StreamState::Empty
    })
}

/// Waits until `fd` is writable, at most for `at_most`.
pub(crate) fn writable(fd: BorrowedFd<'_>, at_most: Duration) {
    // The next write reveals the result of the wait.
    let _ = wait(&mut [PollFd::new(fd, PollFlags::POLLOUT)], Some(at_most));
}

/// poll(2), restarted after signals. The timeout is rounded up to milliseconds.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = match timeout {
        None => PollTimeout::NONE,
        Some(time) => {
            PollTimeout::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
        }
    };
    loop {
        match nix::poll::poll(fds, timeout) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_a_descriptor_with_data_is_readable() {
        let (quiet, _writer) = nix::unistd::pipe().unwrap();
        let (ready, writer) = nix::unistd::pipe().unwrap();
        let brief = Some(Duration::from_millis(1));
        assert_eq!(readable([quiet.as_fd(), ready.as_fd()], brief).unwrap(), [false, false]);
        nix::unistd::write(&writer, b"x").unwrap();
        assert_eq!(readable([quiet.as_fd(), ready.as_fd()], None).unwrap(), [false, true]);
    }
}
