//! The drain of `crate::proxy_streams` inside a host.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use netns::{Host, eventually};

use crate::proxy_streams::Count;
use crate::suite::generator;

/// Any free port.
const AT: u16 = 4435;

/// Time in which the first byte arrives.
const SOON: Duration = Duration::from_secs(10);

/// A drain, which ends with its stdin.
pub(super) struct Drain {
    at: String,
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Drain {
    /// Starts it at an address of the host.
    pub(super) fn start(host: &Host, address: &str) -> Self {
        let at = format!("{address}:{AT}");
        let mut command = host.command(generator());
        command.args(["drain", &at]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("nsenter is installed (make deps)");
        let answers = BufReader::new(process.stdout.take().expect("stdout is piped"));
        eventually("the drain listens", SOON, || host.listens(AT));
        Self { at, process, answers }
    }

    /// Its address and port.
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// Waits until bytes arrive.
    pub(super) fn wait_for_bytes(&mut self) {
        eventually("streams reach the far end", SOON, || self.count().bytes > 0);
    }

    /// The received bytes.
    pub(super) fn count(&mut self) -> Count {
        let question = self.process.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let level = question.and_then(Result::ok).and(read.ok()).and(Count::parse(&line));
        level.expect("the drain answers while its stdin is open")
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // The process is idle. If waiting fails, it ends with the host.
        let _ = self.process.wait();
    }
}
