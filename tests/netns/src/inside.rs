//! Sockets of a host in this process. A socket belongs to the network namespace in which it was
//! opened.

use std::fs::File;
use std::panic::resume_unwind;
use std::thread;

use nix::sched::{CloneFlags, setns};

use crate::host::Host;

impl Host {
    /// Runs `work` in the host's network namespace, on its own thread, and waits for its end.
    ///
    /// # Panics
    /// If `work` does, or if this process may not enter the host.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/proc/{}/ns/net", self.pid()));
        let network = network.expect("a host has a network");
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                setns(&network, CloneFlags::CLONE_NEWNET).expect("tests/netns/run gives the right");
                work()
            });
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}
