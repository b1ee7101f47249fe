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
pub struct StackWipes {
    users: [User; 2],
}

#[derive(Default)]
struct User {
    is_requested: AtomicBool,
    waker: OnceLock<Waker>,
}

impl StackWipes {
    /// Says how to wake a thread that uses keys. Only the first call counts.
    pub fn set_waker(&self, user: KeyUser, waker: Waker) {
        // Another could only come from a second data plane, which a device does not have.
        let _ = self.users[user as usize].waker.set(waker);
    }

    /// Wipes the stack below the caller's frame where sessions ended since this thread did so last;
    /// whether they did.
    #[inline(always)]
    pub fn wipe_if_requested(&self, user: KeyUser) -> bool {
        let flag = &self.users[user as usize].is_requested;
        // Most calls see no session's end, and need no locked instruction.
        let ended = flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        if ended {
            stack::wipe();
        }
        ended
    }

    /// Wakes each thread, unless it was woken and has yet to come to it.
    pub(super) fn request(&self) {
        for user in &self.users {
            if !user.is_requested.swap(true, Ordering::AcqRel)
                && let Some(waker) = user.waker.get()
            {
                waker();
            }
        }
    }
}

impl std::fmt::Debug for StackWipes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_requested = self.users.each_ref().map(|user| &user.is_requested);
        f.debug_struct("StackWipes").field("is_requested", &is_requested).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn each_thread_is_woken_and_wipes_once_however_many_sessions_ended() {
        let wipes = StackWipes::default();
        let woken = Arc::new(AtomicUsize::new(0));
        for user in [KeyUser::Outbound, KeyUser::Inbound] {
            let woken = woken.clone();
            wipes.set_waker(
                user,
                Arc::new(move || {
                    woken.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        assert!(!wipes.wipe_if_requested(KeyUser::Outbound));
        for round in 1..=2 {
            wipes.request();
            wipes.request();
            assert_eq!(woken.load(Ordering::Relaxed), 2 * round);
            for user in [KeyUser::Outbound, KeyUser::Inbound] {
                assert!(wipes.wipe_if_requested(user));
                assert!(!wipes.wipe_if_requested(user));
            }
        }
    }
}
