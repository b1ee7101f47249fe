//! The drain of `crate::pour` inside a host.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use netns::{Host, eventually};

use crate::pour::Level;
use crate::suite::generator;

/// Any that is free in a fresh host.
const AT: u16 = 4435;

/// Within this the first byte is there.
const SOON: Duration = Duration::from_secs(10);

/// A drain, which ends with its stdin.
pub(super) struct Drain {
    at: String,
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Drain {
    /// Starts one at an address of the host.
    pub fn start(host: &Host, address: &str) -> Drain {
        let at = format!("{address}:{AT}");
        let mut command = host.command(generator());
        command.args(["drain", &at]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("nsenter is installed (make deps)");
        let answers = BufReader::new(process.stdout.take().expect("stdout is piped"));
        eventually("the drain listens", SOON, || host.listens(AT));
        Drain { at, process, answers }
    }

    /// Where it is.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Waits until something comes.
    pub fn fills(&mut self) {
        eventually("streams reach the far end", SOON, || self.level().bytes > 0);
    }

    /// What has come so far.
    pub fn level(&mut self) -> Level {
        let question = self.process.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let level = question.and_then(Result::ok).and(read.ok()).and(Level::parse(&line));
        level.expect("the drain answers for as long as it has its stdin")
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It has nothing left to do; a failure to wait leaves it to the host's end.
        let _ = self.process.wait();
    }
}
