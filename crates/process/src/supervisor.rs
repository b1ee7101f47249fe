//! Notifies the service manager. Its watchdog monitors the threads of the data plane:
//!
//! ```text
//!   each third of the limit:  wake all threads -> did each finish a round since? -> alive
//!                                                  `-> log the thread that did not
//! ```

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use node::Node;
use sys::process::Service;

/// Number of checks within the limit, so that a single late round does not matter.
const CHECKS: u32 = 3;

/// The service manager that started the process, if any.
pub(crate) struct Supervisor(Option<Arc<Service>>);

impl Supervisor {
    /// Connects to the service manager that the environment names. Call it before the access to
    /// its socket is dropped.
    pub(crate) fn from_environment() -> Self {
        let service = Service::from_environment().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot notify the service manager");
            None
        });
        Self(service.map(Arc::new))
    }

    /// Reports that `node` can be used, and starts the watchdog if requested.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn ready(&self, node: &Arc<Node>) -> io::Result<()> {
        let Some(service) = &self.0 else { return Ok(()) };
        service.ready();
        let Some(limit) = service.watchdog() else { return Ok(()) };
        let (service, node) = (service.clone(), Arc::downgrade(node));
        let watch = move || watch(&service, &node, limit / CHECKS);
        thread::Builder::new().name("watchdog".into()).spawn(watch).map(drop)
    }

    /// Reports that the process goes down.
    pub(crate) fn stopping(&self) {
        if let Some(service) = &self.0 {
            service.stopping();
        }
    }
}

fn watch(service: &Service, node: &Weak<Node>, pause: Duration) {
    let mut known = HashMap::new();
    while let Some(running) = node.upgrade() {
        let rounds = running.rounds().map(|(name, rounds)| (name.to_owned(), rounds));
        let rounds: HashMap<_, _> = rounds.collect();
        match stuck(&known, &rounds) {
            None => service.alive(),
            Some(name) => tracing::error!("the thread \"{name}\" is stuck"),
        }
        known = rounds;
        running.wake_threads();
        drop(running);
        thread::sleep(pause);
    }
}

/// A thread that has not finished a round since the last check.
fn stuck<'a>(before: &HashMap<String, u64>, now: &'a HashMap<String, u64>) -> Option<&'a str> {
    now.iter().find(|(name, rounds)| before.get(*name) == Some(rounds)).map(|(name, _)| &**name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_thread_without_progress_is_stuck() {
        let rounds = |outbound, inbound| {
            HashMap::from([("outbound".to_owned(), outbound), ("inbound".to_owned(), inbound)])
        };
        assert_eq!(stuck(&HashMap::new(), &rounds(0, 0)), None, "the first check has no reference");
        assert_eq!(stuck(&rounds(0, 0), &rounds(1, 9)), None);
        assert_eq!(stuck(&rounds(1, 9), &rounds(2, 9)), Some("inbound"));
    }
}
