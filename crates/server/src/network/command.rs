//! What is to be done to the state.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use coordinator::{State, Time};
use tokio::{sync::oneshot, time::Instant};

/// Does what is to be done once a change is kept.
pub type Done = Box<dyn FnOnce() + Send>;

type Run = Box<dyn FnMut(&mut State, Time) -> Done + Send>;

/// Runs on the state, and then says what is to be done when that is kept. It is run anew when others
/// have written first: only the last time counts.
pub struct Command {
    run: Run,
    refuse: Box<dyn FnOnce(&str) + Send>,
    /// Since when it waits.
    pub since: Instant,
}

impl Command {
    /// What is returned tells its outcome.
    pub fn new<T: Send + 'static>(
        mut command: impl FnMut(&mut State, Time) -> T + Send + 'static,
    ) -> (Self, oneshot::Receiver<anyhow::Result<T>>) {
        let (reply, outcome) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let tell = |reply: &Mutex<Option<oneshot::Sender<_>>>, outcome| {
            let reply = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Who asked may have gone.
            let _ = reply.map(|reply| reply.send(outcome));
        };
        let own = Arc::clone(&reply);
        let refuse = Box::new(move |why: &str| tell(&own, Err(anyhow!("{why}"))));
        let run = Box::new(move |state: &mut State, now| {
            let (value, reply) = (command(state, now), Arc::clone(&reply));
            let done: Done = Box::new(move || tell(&reply, Ok(value)));
            done
        });
        (Self { run, refuse, since: Instant::now() }, outcome)
    }

    /// Runs it.
    pub fn run(&mut self, state: &mut State, now: Time) -> Done {
        (self.run)(state, now)
    }

    /// Says that it was not done.
    pub fn refuse(self, why: &str) {
        (self.refuse)(why);
    }
}
