//! A time that one thread sets and another one reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Time;

/// No time: [`Time`] is never zero.
const CLEAR: u64 = 0;
/// No time, and the mark cannot be armed.
const OFF: u64 = u64::MAX;

/// An optional time that is armed, clear or off. The default is clear.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    pub(crate) fn off() -> Self {
        Self(AtomicU64::new(OFF))
    }

    pub(crate) fn get(&self) -> Option<Time> {
        match self.0.load(Ordering::SeqCst) {
            CLEAR | OFF => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// Sets `time` if the mark is clear. Returns whether it was.
    pub(crate) fn arm(&self, time: Time) -> bool {
        self.0.load(Ordering::Relaxed) == CLEAR
            && self
                .0
                .compare_exchange(CLEAR, time.as_nanos(), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Sets `time` in any state.
    pub(crate) fn set(&self, time: Time) {
        self.0.store(time.as_nanos(), Ordering::Relaxed);
    }

    /// Clears an armed mark. Does not write to its cache line otherwise.
    pub(crate) fn clear(&self) {
        if !matches!(self.0.load(Ordering::Relaxed), CLEAR | OFF) {
            self.0.store(CLEAR, Ordering::SeqCst);
        }
    }

    /// Switches the mark on or off. A mark that is switched on is clear.
    pub(crate) fn switch(&self, on: bool) {
        let is_on = self.0.load(Ordering::Relaxed) != OFF;
        if is_on != on {
            self.0.store(if on { CLEAR } else { OFF }, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn armed_time_remains_until_cleared_and_a_mark_that_is_off_is_not_armed() {
        let mark = Mark::default();
        let [first, second] = [1, 2].map(Time::from_nanos);
        assert!(mark.arm(first) && !mark.arm(second));
        mark.switch(true);
        assert_eq!(mark.get(), Some(first), "it was on already");
        mark.clear();
        assert!(mark.arm(second));
        mark.switch(false);
        assert_eq!((mark.arm(first), mark.get()), (false, None));
        mark.clear();
        assert!(!mark.arm(first), "clearing does not switch it on");
        mark.switch(true);
        assert!(mark.arm(first));
    }
}
