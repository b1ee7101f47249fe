//! A program that runs in a host until it is dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::host::Host;
use crate::wait::eventually;

/// Time in which a program starts.
const PATIENCE: Duration = Duration::from_secs(15);

/// Lines of its log for failure messages.
const LOG_TAIL: usize = 20;

/// A program that runs in a host; it is killed when dropped.
pub struct Service {
    host: Host,
    name: &'static str,
    process: Child,
    pid: u32,
}

impl Service {
    /// Starts a program with its environment. Its stdin stays open.
    ///
    /// # Panics
    /// If the shell that becomes the program does not start.
    pub fn start<A: AsRef<OsStr>>(
        host: &Host,
        name: &'static str,
        words: impl IntoIterator<Item = A>,
    ) -> Self {
        let log = File::create(host.outside(log(name))).expect("/run/rig is writable");
        let errors = log.try_clone().expect("a file handle can be doubled");
        let pid_file = format!("/run/rig/{name}.pid");
        // An earlier program of this name had another pid.
        host.run(format!("rm -f {pid_file}"));
        // The shell writes its pid and becomes the program, so this is the pid inside.
        let process = host
            .command("sh")
            .args(["-c", "echo $$ >\"$0\"; exec \"$@\"", &pid_file])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("nsenter is installed (make deps)");
        let pid = || host.has(&pid_file).then(|| host.read(&pid_file).trim().parse().ok())?;
        eventually("a program starts", PATIENCE, || pid().is_some());
        let pid = pid().expect("it was just there");
        Self { host: host.clone(), name, process, pid }
    }

    /// Waits until it is ready.
    ///
    /// # Panics
    /// If it ends, or is not ready in time; its log is in the message.
    pub fn wait_until(mut self, mut is_ready: impl FnMut() -> bool) -> Self {
        let mut has_ended = false;
        eventually(self.name, PATIENCE, || {
            has_ended = !matches!(self.process.try_wait(), Ok(None));
            has_ended || is_ready()
        });
        assert!(!has_ended, "{} on {} ended", self.name, self.host.name());
        self
    }

    /// Closes its stdin.
    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Its pid inside its host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal by name: `STOP`, `CONT`, ...
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, signal: &str) {
        self.host.run(format!("kill -{signal} {}", self.pid));
        if signal == "CONT" {
            wake(&self.process);
        }
    }

    /// The host that it runs in.
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if thread::panicking() {
            let text = fs::read_to_string(self.host.outside(log(self.name))).unwrap_or_default();
            let skipped = text.lines().count().saturating_sub(LOG_TAIL);
            let tail: Vec<&str> = text.lines().skip(skipped).collect();
            let (name, host) = (self.name, self.host.name());
            eprintln!("--- end of the log of {name} on {host} ---\n{}", tail.join("\n"));
        }
        if matches!(self.process.try_wait(), Ok(None)) {
            self.host.attempt(format!("kill -KILL {}", self.pid));
            wake(&self.process);
            // It has been killed; the host's end would end it as well.
            let _ = self.process.wait();
        }
    }
}

/// nsenter(1) stops itself when its child is stopped, and does not notice when the child continues.
pub(crate) fn wake(nsenter: &Child) {
    let status = Command::new("kill").args(["-CONT", &nsenter.id().to_string()]).status();
    status.expect("kill is installed (make deps)");
}

fn log(name: &str) -> String {
    format!("/run/rig/{name}.log")
}
