//! Receives signals that would end the process, over a file descriptor.
#![expect(
    unsafe_code,
    reason = "a child's signal mask is set between fork and exec, a disposition is changed, and a \
              set has real-time signals"
)]

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
    ptr,
    time::Duration,
};

use nix::sys::{
    signal::{self, SigSet},
    signalfd::{SfdFlags, SignalFd},
};

use crate::{clock::boottime_nanos, poll};

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or another signal that ends the process.
    Terminate,
    /// SIGHUP, on which some programs read their files again.
    HangUp,
    /// SIGINT.
    Interrupt,
}

/// Signals that end the process: among others SIGHUP when the terminal of a foreground process is
/// closed, SIGQUIT from a keyboard, SIGPWR from the manager of a container, and SIGXCPU at the
/// limit of processor time.
const ENDING: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPWR, libc::SIGXCPU];

/// Unused signals that would end the process. They are discarded, like the real-time signals.
const DISCARDED: [libc::c_int; 8] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGSTKFLT,
    libc::SIGXFSZ,
];

/// All signals that end a process by default and can be blocked, except SIGPIPE, which Rust
/// ignores, and the signals of faults, such as SIGSEGV. They are blocked because hooks would
/// inherit ignored signals and could not trap them (signal(7)).
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals, so that [`Signals::wait`] receives them. Call it before any thread is
    /// started: threads inherit the mask, and a signal to a thread without it ends the process.
    pub fn block() -> io::Result<Self> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        let set = set_of(ENDING.into_iter().chain(DISCARDED).chain(real_time));
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        set.thread_block()?;
        Ok(Self(fd))
    }

    /// Waits for a signal that ends the process.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            poll::readable([self.as_fd()], None)?;
            if let Some(signal) = self.try_wait()? {
                return Ok(signal);
            }
        }
    }

    /// Waits for a signal that ends the process, for at most `time`.
    pub fn wait_for(&self, time: Duration) -> io::Result<Option<Signal>> {
        let end = boottime_nanos() + time.as_nanos() as u64;
        loop {
            if !poll::readable_until(self.as_fd(), end)? {
                return Ok(None);
            }
            if let Some(signal) = self.try_wait()? {
                return Ok(Some(signal));
            }
        }
    }

    /// Returns a pending signal; `None` if no signal is pending. Unused signals are discarded.
    pub fn try_wait(&self) -> io::Result<Option<Signal>> {
        while let Some(info) = self.0.read_signal()? {
            match i32::try_from(info.ssi_signo) {
                Ok(libc::SIGINT) => return Ok(Some(Signal::Interrupt)),
                Ok(libc::SIGHUP) => return Ok(Some(Signal::HangUp)),
                Ok(signal) if ENDING.contains(&signal) => return Ok(Some(Signal::Terminate)),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// A set that may contain real-time signals, which [`SigSet`] cannot add.
fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> SigSet {
    let mut set = *SigSet::empty().as_ref();
    for signal in signals {
        // SAFETY: the set is initialized. An unknown signal is rejected.
        unsafe { libc::sigaddset(ptr::from_mut(&mut set), signal) };
    }
    // SAFETY: the set was created by sigemptyset(3) (in nix) and sigaddset(3).
    unsafe { SigSet::from_sigset_t_unchecked(set) }
}

/// Unblocks all signals of this thread, and of the threads that it starts later. Signals then end
/// a process that was started with blocked signals but needs no cleanup.
///
/// # Errors
/// The kernel refused.
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Unblocks the signals of [`Signals::block`] in a command. Otherwise it would inherit the mask,
/// and these signals could not end it.
pub fn unmask(command: &mut Command) -> &mut Command {
    let unmask = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe,
    // and accesses only its own memory.
    unsafe { command.pre_exec(unmask) }
}

/// Lets SIGPIPE end the process when the reader of its output exits, such as head(1). By default,
/// a Rust program ignores SIGPIPE and the write fails. For commands that print, not for daemons.
pub fn end_on_broken_pipe() {
    // SAFETY: this does not set a handler that would have to be async-signal-safe.
    let set = unsafe { signal::signal(signal::Signal::SIGPIPE, signal::SigHandler::SigDfl) };
    set.expect("the disposition of SIGPIPE can be set");
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
