//! The scheduler's time slice of a thread.
#![expect(unsafe_code, reason = "libc has no wrappers for sched_getattr and sched_setattr")]

use std::mem;

use nix::errno::Errno;

/// In nanoseconds, the shortest that Linux accepts. A short time slice lowers latency at the cost
/// of more cache misses. The thread's share of the processor stays the same.
const TIME_SLICE: u64 = 100_000;

/// Requests a short time slice for this thread, so that it runs sooner after it wakes up
/// (`sched_runtime` of a `SCHED_OTHER` thread, Linux 6.12; older kernels ignore it).
///
/// # Errors
/// The kernel refused.
pub fn request_short_time_slice() -> Result<(), Errno> {
    let mut attr = read()?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        // Another policy was set for this process and stays.
        return Ok(());
    }
    attr.sched_runtime = TIME_SLICE;
    // SAFETY: the kernel reads one sched_attr, which contains its size.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    Errno::result(set).map(drop)
}

fn read() -> Result<libc::sched_attr, Errno> {
    // SAFETY: a sched_attr consists of integers, for which zero is valid.
    let mut attr: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of_val(&attr);
    // SAFETY: the kernel writes at most `size` bytes, which is the size of `attr`.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    Errno::result(got)?;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets this thread's policy. Returns whether that was allowed. Every thread may choose the
    /// idle policy, but cannot leave it without privileges.
    fn set_policy(policy: libc::c_int) -> bool {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel reads one sched_param.
        let set = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        match Errno::result(set) {
            Ok(_) => true,
            Err(Errno::EPERM) if policy != libc::SCHED_IDLE => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn only_the_time_slice_of_normal_threads_is_changed() {
        let check = |policy| {
            if !set_policy(policy) {
                return;
            }
            let before = read().unwrap();
            request_short_time_slice().unwrap();
            let after = read().unwrap();
            assert_eq!((before.sched_policy, after.sched_policy), (policy as u32, policy as u32));
            assert_eq!(before.sched_nice, after.sched_nice);
            match policy {
                // Linux before 6.12 ignores the time slice.
                libc::SCHED_OTHER => assert!(matches!(after.sched_runtime, 0 | TIME_SLICE)),
                _ => assert_eq!(before.sched_runtime, after.sched_runtime),
            }
        };
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE] {
            std::thread::scope(|scope| scope.spawn(|| check(policy)).join().unwrap());
        }
    }
}
