//! Sessions that ended. Their keys are wiped with the keypair; copies are still on the stacks of
//! the threads that used them, which only these can wipe.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use packet::Waker;

use crate::stack;

/// How many times sessions ended, and how to wake the threads that used their keys.
#[derive(Default)]
pub struct Retired {
    times: AtomicU64,
    wakers: OnceLock<Box<[Waker]>>,
}

impl Retired {
    /// Says how to wake the threads that use keys. Only the first call counts.
    pub fn set_wakers(&self, wakers: impl IntoIterator<Item = Waker>) {
        // Others could only come from a second data plane, which a device does not have.
        let _ = self.wakers.set(wakers.into_iter().collect());
    }

    /// Wipes the stack below the caller's frame where sessions ended since `seen`; whether they
    /// did.
    #[inline(always)]
    pub fn wipe_stack(&self, seen: &mut u64) -> bool {
        let times = self.times.load(Ordering::Acquire);
        let ended = times != *seen;
        if ended {
            *seen = times;
            stack::wipe();
        }
        ended
    }

    pub(super) fn note(&self) {
        self.times.fetch_add(1, Ordering::Release);
        self.wakers.get().into_iter().flatten().for_each(|waker| waker());
    }
}

impl std::fmt::Debug for Retired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retired").field("times", &self.times).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn each_thread_is_woken_and_wipes_once_when_sessions_ended() {
        let retired = Retired::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let waker = || -> Waker {
            let woken = woken.clone();
            Arc::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        retired.set_wakers([waker(), waker()]);
        let mut threads = [0, 0];
        assert!(!retired.wipe_stack(&mut threads[0]));
        retired.note();
        retired.note();
        assert_eq!(woken.load(Ordering::Relaxed), 4);
        for seen in &mut threads {
            assert!(retired.wipe_stack(seen));
            assert!(!retired.wipe_stack(seen));
        }
    }
}
