//! The clock's room: protocol code is handed `now`, and this is where it comes
//! from.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, with the time in which the machine slept: a keypair
/// must age while the laptop is shut.
pub fn boottime_nanos() -> u64 {
    let now = read(ClockId::CLOCK_BOOTTIME);
    u64::try_from(now.as_nanos()).expect("a machine is not up for 584 years")
}

/// The time since the Unix epoch, zero where the wall clock stands before it.
pub fn wall() -> Duration {
    read(ClockId::CLOCK_REALTIME)
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock).expect("Linux has both clocks since 2.6.39");
    match (u64::try_from(now.tv_sec()), u32::try_from(now.tv_nsec())) {
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_does_not_step_back_and_the_wall_clock_is_past_2020() {
        let first = boottime_nanos();
        assert!(first > 0 && boottime_nanos() >= first);
        assert!(wall() > Duration::from_hours(24 * 365 * 50));
    }
}
