//! What the tests share: rooms of their own in which to disturb nobody.

use std::{
    io::Write as _,
    panic::{self, AssertUnwindSafe},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, fork},
};

use crate::netlink::Netlink;

/// Runs `test` in a fresh network namespace, with the loopback interface up.
/// It ends with the thread and takes all devices along.
pub(crate) fn in_namespace(test: impl FnOnce(&Netlink) + Send) {
    let run = || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skip("CAP_NET_ADMIN");
        }
        let netlink = Netlink::open().unwrap();
        netlink.set_up(1).unwrap();
        test(&netlink);
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|e| panic::resume_unwind(e));
}

/// Says that a test could not run, past libtest's capture.
pub(crate) fn skip(need: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: needs {need} ({name})");
}

/// Runs `child` in a forked process, which is alone in its process as the
/// program's main thread is at its start. Returns its process id.
#[expect(unsafe_code, reason = "fork")]
pub(crate) fn forked(child: impl FnOnce()) -> Pid {
    // SAFETY: the child runs this closure only, and glibc keeps its allocator
    // usable there; no lock that another test's thread may hold is taken, but
    // that of the panic hook, which tests do not set.
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
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Waits for a forked child; whether it ended well.
pub(crate) fn ended_well(child: Pid) -> bool {
    waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0)
}
