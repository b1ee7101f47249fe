//! The output of the log: standard error. After a background process has detached from its terminal,
//! standard error is a connection to syslog, or to a process that forwards to syslog.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use sys::process::{Syslog, redirect_stderr, send_to_stderr, silence_stderr};
use tracing::Level;

use super::NAME;

/// The facility of daemons (syslog(3)).
const DAEMON: u8 = 3 << 3;

/// Whether standard error is connected to syslog.
static SYSLOG: AtomicBool = AtomicBool::new(false);

/// Whether lines go to syslog.
pub(super) fn is_syslog() -> bool {
    SYSLOG.load(Ordering::Relaxed)
}

/// The prefix of a message for syslog: its priority, and the process.
pub(super) fn write_head(out: &mut impl fmt::Write, level: Level) -> fmt::Result {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    write!(out, "<{}>linerate[{}]: ", DAEMON | severity, std::process::id())
}

/// Prints a line as an error. Syslog adds the program's name itself.
pub(super) fn print(line: &str) {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = if is_syslog() {
        let line = line.strip_prefix(NAME).unwrap_or(line);
        write_head(&mut text, Level::ERROR).and_then(|()| writeln!(text, "{line}"))
    } else {
        writeln!(text, "{line}")
    };
    let _ = Output.write_all(text.as_bytes());
}

/// Standard error. Errors are ignored.
pub(super) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One write is one message.
        if is_syslog() {
            send_to_stderr(bytes);
        } else {
            let _ = io::stderr().write_all(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Detaches a background process from its terminal.
pub(crate) struct TerminalDetachment {
    /// Whether the process detaches.
    detaches: bool,
    /// The connection to syslog.
    syslog: Option<OwnedFd>,
}

impl TerminalDetachment {
    /// Connects to syslog, unless `LOG_LEVEL` or `JOURNAL_STREAM` is set: then logs stay on standard
    /// error.
    pub(crate) fn prepare() -> Self {
        Self::prepare_by(|syslog| Ok(syslog.into()))
    }

    /// Prepares a process that will be confined like [`Self::prepare`]. Starts a process that forwards to
    /// syslog.
    pub(crate) fn prepare_confined() -> Self {
        Self::prepare_by(|syslog| process::forward_to(&syslog))
    }

    fn prepare_by(connect: impl FnOnce(Syslog) -> io::Result<OwnedFd>) -> Self {
        let wanted = ["LOG_LEVEL", "JOURNAL_STREAM"];
        let detaches = wanted.iter().all(|name| std::env::var_os(name).is_none());
        // Most containers run without syslog.
        let syslog = detaches.then(|| Syslog::connect().and_then(connect).ok()).flatten();
        Self { detaches, syslog }
    }

    /// Redirects standard error to syslog, or to `/dev/null`. Otherwise the reader of a pipe would wait
    /// for its end.
    pub(crate) fn detach(&self) {
        if !self.detaches {
            return;
        }
        let left = match &self.syslog {
            Some(syslog) => redirect_stderr(syslog),
            None => silence_stderr(),
        };
        match left {
            Ok(()) => SYSLOG.store(self.syslog.is_some(), Ordering::Relaxed),
            Err(error) => tracing::warn!(%error, "cannot redirect standard error"),
        }
    }
}
