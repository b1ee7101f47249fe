//! This program as a server inside a host; it ends with its stdin.

use std::env;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{Host, eventually};

/// Time in which a started program opens its socket.
const SOON: Duration = Duration::from_secs(5);

/// The path of this program.
pub(super) fn generator() -> PathBuf {
    env::current_exe().expect("a running program has a file")
}

/// A running generator that ends with its stdin.
pub(super) struct Server(Child);

impl Server {
    /// Starts it and waits for its UDP socket.
    pub(super) fn start(host: &Host, arguments: &[&str], port: u16) -> Self {
        Self::until(host, arguments, || host.dropped_by_socket(port).is_some())
    }

    /// Starts it and waits for its TCP socket.
    pub(super) fn start_tcp(host: &Host, arguments: &[&str], port: u16) -> Self {
        Self::until(host, arguments, || host.listens(port))
    }

    fn until(host: &Host, arguments: &[&str], is_there: impl FnMut() -> bool) -> Self {
        let mut command = host.command(generator());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let server = Self(command.spawn().expect("nsenter is installed (make deps)"));
        eventually("the generator listens", SOON, is_there);
        server
    }
}

impl Server {
    /// Ends it and returns its output.
    pub(super) fn finish(mut self) -> String {
        drop(self.0.stdin.take());
        let mut words = String::new();
        // Without stdout there is no output.
        let _ = self.0.stdout.take().map(|mut stdout| stdout.read_to_string(&mut words));
        words
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The process is idle. If waiting fails, it ends with the host.
        let _ = self.0.wait();
    }
}
