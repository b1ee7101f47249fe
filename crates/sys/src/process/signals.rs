//! Signals that would end the process, as a file descriptor to wait on.
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

/// A signal that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, or another signal that ends the process.
    Terminate,
    /// SIGHUP, which asks some programs to read their files again.
    HangUp,
    /// SIGINT.
    Interrupt,
}

/// What ends the process: SIGHUP when the terminal of a foreground process is closed, SIGQUIT from
/// a keyboard, SIGPWR from the manager of a container, SIGXCPU at the limit of processor time.
const ENDING: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPWR, libc::SIGXCPU];

/// Signals that would end the process, although it does not use them. The real-time signals are
/// discarded as well.
const WITHOUT_MEANING: [libc::c_int; 8] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGSTKFLT,
    libc::SIGXFSZ,
];

/// All signals that end a process by default and can be blocked, except SIGPIPE, which Rust ignores,
/// and the signals of faults, such as SIGSEGV. They are blocked, and not ignored: hooks would inherit
/// that and could not trap them (signal(7)).
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals, for [`Signals::wait`]. Call it before any thread is started: threads
    /// inherit the mask, and a signal to a thread without it would end the process.
    pub fn block() -> io::Result<Self> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        let set = set_of(ENDING.into_iter().chain(WITHOUT_MEANING).chain(real_time));
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

    /// A signal that has come already. Those without a meaning are discarded.
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

/// A set that may hold real-time signals, which [`SigSet`] cannot add.
fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> SigSet {
    let mut set = *SigSet::empty().as_ref();
    for signal in signals {
        // SAFETY: the set is initialized; an unknown signal is refused.
        unsafe { libc::sigaddset(ptr::from_mut(&mut set), signal) };
    }
    // SAFETY: the set was made by sigemptyset(3), in nix, and sigaddset(3).
    unsafe { SigSet::from_sigset_t_unchecked(set) }
}

/// Unblocks all signals of this thread, and of the threads that it starts from now on. A process that
/// was started with blocked signals, and has nothing to clean up, is ended by them then.
///
/// # Errors
/// The kernel refused.
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
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
pub fn end_on_broken_pipe() {
    // SAFETY: no handler is set, so none has to be async-signal-safe.
    let set = unsafe { signal::signal(signal::Signal::SIGPIPE, signal::SigHandler::SigDfl) };
    set.expect("SIGPIPE may be ignored or not");
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
