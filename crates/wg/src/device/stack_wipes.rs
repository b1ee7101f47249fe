//! Requests to wipe stacks after sessions ended. A keypair wipes its own keys. Copies remain on the
//! stacks of the threads that used them, and only these threads can wipe them.

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

/// Which threads still have to wipe their stacks, and their wakers.
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
    /// Sets the waker of a thread that uses keys. Only the first call has an effect.
    pub fn set_waker(&self, user: KeyUser, waker: Waker) {
        // A second waker could only come from a second data plane, and a device has one.
        let _ = self.users[user as usize].waker.set(waker);
    }

    /// Wipes the stack below the caller's frame if sessions ended since this thread's last wipe.
    /// Returns whether it did.
    #[inline(always)]
    pub fn wipe_if_requested(&self, user: KeyUser) -> bool {
        let flag = &self.users[user as usize].is_requested;
        // Most calls find no request. They need only a plain load, not a locked instruction.
        let requested = flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        if requested {
            stack::wipe();
        }
        requested
    }

    /// Requests a wipe from each thread, and wakes it unless a request is already pending.
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
    fn two_requests_wake_each_thread_once_and_cause_one_wipe() {
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
