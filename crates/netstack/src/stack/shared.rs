//! The state behind its mutex. Releasing the mutex wakes threads and tasks that have work.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use super::{
    config::{Clock, Config},
    state::State,
};
use crate::time::Time;

pub(crate) struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// [`StackRecv`] waits for this.
    ready: Condvar,
    /// Closing the stack waits for this until all packets have left.
    flushed: Condvar,
    /// Whether received packets are coalesced.
    gro: AtomicBool,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            clock: config.clock.clone(),
            state: Mutex::new(State::new(config)),
            ready: Condvar::new(),
            flushed: Condvar::new(),
            gro: AtomicBool::new(true),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::new((self.clock)())
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, state: Some(state) }
    }

    pub(crate) fn has_gro(&self) -> bool {
        self.gro.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gro(&self, gro: bool) {
        self.gro.store(gro, Ordering::Relaxed);
    }

    /// Waits until all packets have left, for `at_most` this time.
    pub(crate) fn wait_until_flushed(&self, at_most: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |state: &mut State| !state.has_nothing_to_send();
        drop(self.flushed.wait_timeout_while(state, at_most, waiting));
    }
}

/// The locked state. Releasing it wakes all tasks that have work.
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    state: Option<MutexGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    /// Waits until a socket has something to send, for `at_most` this time.
    pub(crate) fn wait(mut self, at_most: Option<Duration>) -> Self {
        let shared = self.shared;
        if let Some(state) = self.state.take() {
            let ready = &shared.ready;
            let state = match at_most {
                Some(at_most) => {
                    let waited = ready.wait_timeout(state, at_most);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            self.state = Some(state);
        }
        self
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is locked until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is locked until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let wakers = state.take_wakers();
        let sender_sleeps = state.must_wake_sender();
        let flushed = state.closed && state.has_nothing_to_send();
        drop(state);
        if flushed {
            self.shared.flushed.notify_all();
        }
        if sender_sleeps {
            self.shared.ready.notify_one();
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}
