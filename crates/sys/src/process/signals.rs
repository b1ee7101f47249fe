//! The signals that end the process, as something to wait for.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::{
    signal::{self, SigSet},
    signalfd::{SfdFlags, SignalFd},
};

use crate::poll;

/// A wish that the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// SIGTERM and SIGINT, which no longer end the process by themselves.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals and keeps them for [`Signals::wait`]. Call it before any
    /// thread is started: threads inherit it, and one that did not would be
    /// ended by the signal, with the process.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(signal::Signal::SIGTERM);
        set.add(signal::Signal::SIGINT);
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        set.thread_block()?;
        Ok(Self(fd))
    }

    /// Waits for one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            poll::readable([self.as_fd()], None)?;
            if let Some(signal) = self.try_wait()? {
                return Ok(signal);
            }
        }
    }

    /// One that came, where one did.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn try_wait(&self) -> io::Result<Option<Signal>> {
        let info = self.0.read_signal()?;
        Ok(info.map(|info| match i32::try_from(info.ssi_signo) {
            Ok(libc::SIGINT) => Signal::Interrupt,
            _ => Signal::Terminate,
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
