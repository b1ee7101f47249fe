//! The sources of the time `now`, which protocol code takes as an argument.
#![expect(unsafe_code, reason = "the adjtimex call")]

use std::{mem::MaybeUninit, time::Duration};

use nix::time::{ClockId, clock_gettime};

/// The time since boot, including suspension: a keypair must expire while the machine is
/// suspended.
pub fn boottime() -> Duration {
    read(ClockId::CLOCK_BOOTTIME)
}

/// The time since boot in nanoseconds.
pub fn boottime_nanos() -> u64 {
    u64::try_from(boottime().as_nanos()).expect("a machine is not up for 584 years")
}

/// The time since the Unix epoch, zero if the wall clock is before it.
pub fn wall() -> Duration {
    read(ClockId::CLOCK_REALTIME)
}

/// The processor time used by the calling thread.
pub fn thread_time() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// The processor time used by all threads of the process.
pub fn process_time() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Whether the wall clock is synchronised (by NTP or a hypervisor) according to the kernel
/// (adjtimex(2)); `None` if the call fails.
pub fn is_synchronised() -> Option<bool> {
    let mut timex = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: adjtimex reads and writes one timex. All zeros are valid and do not change settings.
    let state = unsafe { libc::adjtimex(timex.as_mut_ptr()) };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock).expect("Linux has these clocks since 2.6.39");
    match (u64::try_from(now.tv_sec()), u32::try_from(now.tv_nsec())) {
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_is_monotonic_and_the_wall_clock_is_past_2020() {
        let first = boottime_nanos();
        assert!(first > 0 && boottime_nanos() >= first);
        assert!(wall() > Duration::from_hours(24 * 365 * 50));
    }

    #[test]
    fn kernel_reports_whether_the_clock_is_synchronised() {
        assert!(is_synchronised().is_some());
    }
}
