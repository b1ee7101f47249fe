//! The signals that end the process, as something to wait for.
#![expect(unsafe_code, reason = "a child's signal mask is set between fork and exec")]

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
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

/// SIGTERM, SIGINT and SIGHUP, which no longer end the process by themselves.
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
        // The terminal of a process in the foreground was closed.
        set.add(signal::Signal::SIGHUP);
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

/// Gives a command the signals that [`Signals::block`] keeps from this process: it
/// would inherit that, and could not be ended by them.
pub fn unmask(command: &mut Command) -> &mut Command {
    let unmask = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: between fork and exec the closure makes one system call, which is
    // async-signal-safe, and touches no memory but its own.
    unsafe { command.pre_exec(unmask) }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
