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

    /// Whether this thread is of a policy from now on. Any thread may become idle, and a
    /// thread without rights may not become anything else again.
    fn become_one_of(policy: libc::c_int) -> bool {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel reads one sched_param.
        let set = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        match Errno::result(set) {
            Ok(_) => true,
            Err(Errno::EPERM) if policy != libc::SCHED_IDLE => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whatever policy the tests run under.
    #[test]
    fn only_the_length_of_turns_changes_and_only_of_a_normal_thread() {
        let check = |policy| {
            if !become_one_of(policy) {
                return;
            }
            let before = read().unwrap();
            take_short_turns().unwrap();
            let after = read().unwrap();
            assert_eq!((before.sched_policy, after.sched_policy), (policy as u32, policy as u32));
            assert_eq!(before.sched_nice, after.sched_nice);
            match policy {
                // Linux before 6.12 keeps no turn.
                libc::SCHED_OTHER => assert!(matches!(after.sched_runtime, 0 | TURN)),
                _ => assert_eq!(before.sched_runtime, after.sched_runtime),
            }
        };
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE] {
            std::thread::scope(|scope| scope.spawn(|| check(policy)).join().unwrap());
        }
    }
}
