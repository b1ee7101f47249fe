//! How long a thread keeps a core at a time.
#![expect(unsafe_code, reason = "libc has no wrappers for sched_getattr and sched_setattr")]

use std::mem;

use nix::errno::Errno;

/// The wanted turn, in nanoseconds: the least that Linux takes. Turns are short
/// where latency counts more than a warm cache; the share of the processor stays
/// the same.
const TURN: u64 = 100_000;

/// Asks for short turns for this thread: it is run sooner when it wakes
/// (`sched_runtime` of a `SCHED_OTHER` thread, Linux 6.12; older kernels take no
/// notice).
///
/// # Errors
/// The kernel's answer.
pub fn take_short_turns() -> Result<(), Errno> {
    let mut attr = read()?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        // Somebody chose another policy, with rules of its own.
        return Ok(());
    }
    attr.sched_runtime = TURN;
    // SAFETY: the kernel reads one sched_attr, whose size stands in it.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    Errno::result(set).map(drop)
}

fn read() -> Result<libc::sched_attr, Errno> {
    // SAFETY: a sched_attr is integers, for which zero is valid.
    let mut attr: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of_val(&attr);
    // SAFETY: the kernel writes `size` bytes at most, which `attr` has.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    Errno::result(got)?;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_length_of_turns_changes() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = read().unwrap();
                take_short_turns().unwrap();
                let after = read().unwrap();
                assert_eq!(before.sched_policy, after.sched_policy);
                assert_eq!(before.sched_nice, after.sched_nice);
                // Linux before 6.12 keeps no turn.
                assert!(matches!(after.sched_runtime, 0 | TURN), "{}", after.sched_runtime);
            });
        });
    }
}
