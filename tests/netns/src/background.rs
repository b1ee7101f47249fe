//! Threads that work beside a test.

use std::thread::{self, JoinHandle};

/// Starts a thread. Who has no use for what it returns lets it run until the process ends.
pub fn in_background<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread for a test")
}
