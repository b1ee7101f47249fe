//! Sessions that ended. Their keys are wiped with the keypair; copies are still on the stacks of
//! the threads that used them, which only these can wipe.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use packet::Waker;

use crate::stack;

/// A thread that uses keys.
#[derive(Clone, Copy, Debug)]
pub enum KeyUser {
    Outbound,
    Inbound,
}

/// Which threads have not wiped their stacks since sessions ended, and how to wake them.
#[derive(Default)]
pub struct Retired {
    users: [User; 2],
}

#[derive(Default)]
struct User {
    has_to_wipe: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Retired {
    /// Says how to wake a thread that uses keys. Only the first call counts.
    pub fn set_waker(&self, user: KeyUser, waker: Waker) {
        // Another could only come from a second data plane, which a device does not have.
        let _ = self.users[user as usize].waker.set(waker);
    }

    /// Wipes the stack below the caller's frame where sessions ended since this thread did so last;
    /// whether they did.
    #[inline(always)]
    pub fn wipe_stack(&self, user: KeyUser) -> bool {
        let flag = &self.users[user as usize].has_to_wipe;
        // Most calls see no session's end, and need no locked instruction.
        let ended = flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        if ended {
            stack::wipe();
        }
        ended
    }

    /// Wakes each thread, unless it was woken and has yet to come to it.
    pub(super) fn note(&self) {
        for user in &self.users {
            if !user.has_to_wipe.swap(true, Ordering::AcqRel)
                && let Some(waker) = user.waker.get()
            {
                waker();
            }
        }
    }
}

impl std::fmt::Debug for Retired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let has_to_wipe = self.users.each_ref().map(|user| &user.has_to_wipe);
        f.debug_struct("Retired").field("has_to_wipe", &has_to_wipe).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn each_thread_is_woken_and_wipes_once_however_many_sessions_ended() {
        let retired = Retired::default();
        let woken = Arc::new(AtomicUsize::new(0));
        for user in [KeyUser::Outbound, KeyUser::Inbound] {
            let woken = woken.clone();
            retired.set_waker(
                user,
                Arc::new(move || {
                    woken.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        assert!(!retired.wipe_stack(KeyUser::Outbound));
        for round in 1..=2 {
            retired.note();
            retired.note();
            assert_eq!(woken.load(Ordering::Relaxed), 2 * round);
            for user in [KeyUser::Outbound, KeyUser::Inbound] {
                assert!(retired.wipe_stack(user));
                assert!(!retired.wipe_stack(user));
            }
        }
    }
}
