//! Threads that run during a test.

use std::thread::{self, JoinHandle};

/// Starts a thread. If the handle is dropped, it runs until the process ends.
pub fn in_background<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread for a test")
}
