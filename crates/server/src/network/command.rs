//! Commands on the state.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use coordinator::{State, Time};
use tokio::{sync::oneshot, time::Instant};

/// Finishes a command after its commit.
pub(super) type Done = Box<dyn FnOnce() + Send>;

type Run = Box<dyn FnMut(&mut State, Time) -> Done + Send>;

/// A command, which runs on the state and returns an action for after the commit. It runs again if a
/// conflict occurred. Only the last run counts.
pub(super) struct Command {
    run: Run,
    refuse: Box<dyn FnOnce(&str) + Send>,
    /// When it was queued.
    pub since: Instant,
}

impl Command {
    /// Creates a command. The receiver gets its result.
    pub(super) fn new<T: Send + 'static>(
        mut command: impl FnMut(&mut State, Time) -> T + Send + 'static,
    ) -> (Self, oneshot::Receiver<anyhow::Result<T>>) {
        let (reply, outcome) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let reply_with = |reply: &Mutex<Option<oneshot::Sender<_>>>, outcome| {
            let reply = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
            // The caller may be gone.
            let _ = reply.map(|reply| reply.send(outcome));
        };
        let own = Arc::clone(&reply);
        let refuse = Box::new(move |why: &str| reply_with(&own, Err(anyhow!("{why}"))));
        let run = Box::new(move |state: &mut State, now| {
            let (value, reply) = (command(state, now), Arc::clone(&reply));
            let done: Done = Box::new(move || reply_with(&reply, Ok(value)));
            done
        });
        (Self { run, refuse, since: Instant::now() }, outcome)
    }

    /// Runs the command.
    pub(super) fn run(&mut self, state: &mut State, now: Time) -> Done {
        (self.run)(state, now)
    }

    /// Answers that the command did not run.
    pub(super) fn refuse(self, why: &str) {
        (self.refuse)(why);
    }
}
