//! A moment that one thread notes and another one reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Time;

/// No moment: [`Time`] is never zero.
const CLEAR: u64 = 0;
/// No moment, and none is to be noted.
const OFF: u64 = u64::MAX;

/// Armed with a moment, or clear, or switched off. By default it is clear.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    pub fn off() -> Self {
        Self(AtomicU64::new(OFF))
    }

    pub fn get(&self) -> Option<Time> {
        match self.0.load(Ordering::SeqCst) {
            CLEAR | OFF => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// Notes `time` where the mark is clear; whether it was.
    pub fn arm(&self, time: Time) -> bool {
        self.0.load(Ordering::Relaxed) == CLEAR
            && self
                .0
                .compare_exchange(CLEAR, time.as_nanos(), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Notes `time`, whatever the mark is.
    pub fn set(&self, time: Time) {
        self.0.store(time.as_nanos(), Ordering::Relaxed);
    }

    /// Clears a mark, without dirtying its cache line where there is nothing to clear.
    pub fn clear(&self) {
        if !matches!(self.0.load(Ordering::Relaxed), CLEAR | OFF) {
            self.0.store(CLEAR, Ordering::SeqCst);
        }
    }

    /// Says whether the mark may be armed. It is clear once it is switched on.
    pub fn switch(&self, on: bool) {
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
    fn the_first_moment_stays_until_it_is_cleared_and_one_that_is_off_takes_none() {
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
        assert!(!mark.arm(first), "to clear it does not switch it on");
        mark.switch(true);
        assert!(mark.arm(first));
    }
}
