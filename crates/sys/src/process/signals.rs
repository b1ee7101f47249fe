//! Signals that end the process, as a file descriptor to wait on.
#![expect(
    unsafe_code,
    reason = "a child's signal mask is set between fork and exec, and a disposition is changed"
)]

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

/// A signal that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGHUP, which asks some programs to read their files again.
    HangUp,
    /// SIGINT.
    Interrupt,
}

/// SIGTERM, SIGINT and SIGHUP, blocked.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals, for [`Signals::wait`]. Call it before any thread is started: threads
    /// inherit the mask, and a signal to a thread without it would end the process.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(signal::Signal::SIGTERM);
        set.add(signal::Signal::SIGINT);
        // Sent when the terminal of a foreground process is closed.
        set.add(signal::Signal::SIGHUP);
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        set.thread_block()?;
        Ok(Self(fd))
    }

    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            poll::readable([self.as_fd()], None)?;
            if let Some(signal) = self.try_wait()? {
                return Ok(signal);
            }
        }
    }

    pub fn try_wait(&self) -> io::Result<Option<Signal>> {
        let info = self.0.read_signal()?;
        Ok(info.map(|info| match i32::try_from(info.ssi_signo) {
            Ok(libc::SIGINT) => Signal::Interrupt,
            Ok(libc::SIGHUP) => Signal::HangUp,
            _ => Signal::Terminate,
        }))
    }
}

/// Unblocks in a command what [`Signals::block`] blocks. Otherwise it would inherit the mask, and
/// these signals could not end it.
pub fn unmask(command: &mut Command) -> &mut Command {
    let unmask = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: between fork and exec the closure makes one system call, which is
    // async-signal-safe, and touches only its own memory.
    unsafe { command.pre_exec(unmask) }
}

/// Has the process end silently once the reader of what it prints is gone, as `head` when it has read
/// enough, where Rust has the write fail. For a command that prints; a daemon goes on.
pub fn end_with_the_reader() {
    // SAFETY: no handler is set, so none has to be async-signal-safe.
    let set = unsafe { signal::signal(signal::Signal::SIGPIPE, signal::SigHandler::SigDfl) };
    set.expect("SIGPIPE may be ignored or not");
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
