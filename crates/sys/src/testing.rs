//! Test helpers: separate namespaces and processes, virtual time, and random numbers.

use std::{
    os::fd::BorrowedFd,
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, fork},
};

pub(crate) use skips::skip;

use crate::{netlink::Netlink, time::Clock};

/// Virtual time, which advances only on request.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime {
    now: AtomicU64,
    slept: AtomicU64,
    polled: AtomicU64,
}

impl VirtualTime {
    pub(crate) fn pass(&self, time: Duration) {
        self.now.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The time spent sleeping.
    pub(crate) fn slept(&self) -> Duration {
        Duration::from_nanos(self.slept.load(Ordering::Relaxed))
    }

    /// The time spent polling a file descriptor.
    pub(crate) fn polled(&self) -> Duration {
        Duration::from_nanos(self.polled.load(Ordering::Relaxed))
    }

    /// The time spent sleeping or polling.
    pub(crate) fn waited(&self) -> Duration {
        self.slept() + self.polled()
    }
}

impl Clock for VirtualTime {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn sleep(&self, time: Duration) {
        self.pass(time);
        self.slept.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn wait_writable(&self, _: BorrowedFd<'_>, at_most: Duration) {
        self.pass(at_most);
        self.polled.fetch_add(at_most.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A seeded random generator (xorshift64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// True with a probability of `chances` in 256.
    pub(crate) fn chance(&mut self, chances: u8) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as u8) < chances
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new(1)
    }
}

/// Runs `test` in a new network namespace, with the loopback interface up. The namespace and its
/// devices are removed when the thread ends.
pub(crate) fn in_namespace(test: impl FnOnce(&Netlink) + Send) {
    let run = || {
        match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => {}
            Err(Errno::EPERM) => return skip("CAP_NET_ADMIN"),
            Err(errno) => panic!("cannot create a network namespace: {errno}"),
        }
        let netlink = Netlink::open().unwrap();
        netlink.set_up(1).unwrap();
        test(&netlink);
    };
    let named = thread::Builder::new().name(test_name());
    thread::scope(|scope| named.spawn_scoped(scope, run).unwrap().join())
        .unwrap_or_else(|panic| panic::resume_unwind(panic));
}

/// The name of the test, which is the name of its thread.
fn test_name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// Runs `child` in a forked process with a single thread, like a program at its start. Returns its
/// process id.
#[expect(unsafe_code, reason = "fork")]
pub(crate) fn forked(child: impl FnOnce()) -> Pid {
    // SAFETY: the child runs only this closure, and glibc keeps its allocator usable there. It
    // does not take locks that other tests' threads may hold, except that of the panic hook, which
    // tests do not set.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let ran = panic::catch_unwind(AssertUnwindSafe(child));
            exit(if ran.is_ok() { 0 } else { 101 })
        }
    }
}

/// Ends a forked child, without the exit handlers of the test program.
#[expect(unsafe_code, reason = "_exit")]
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: _exit may always be called.
    unsafe { libc::_exit(code) }
}

/// Waits for a forked child. Returns whether it succeeded.
pub(crate) fn succeeded(child: Pid) -> bool {
    waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0)
}
