//! The command that brings an interface up or down, as the process in the background sees it. The
//! command runs the hooks, so that they have its terminal, its standard input and its output, and
//! prints errors.
//!
//! ```text
//!   linerate up -- fork --> peer        hooks: PreUp, PostUp
//!   linerate down --------> guardian    hooks: PreDown, PostDown; errors and warnings
//!        `----------------> peer        errors and warnings, as lines of the control socket
//!
//!   peer or guardian -- 'h' hook --> command -- 's' status, or 'x' error -->
//!                    -- 'e' error, 'w' warning -->
//! ```

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead, Write as _},
    os::unix::{ffi::OsStrExt as _, net::UnixStream, process::ExitStatusExt as _},
    path::PathBuf,
    process::ExitStatus,
    str,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, bail};
use host::{
    guardian_socket,
    hooks::{Hook, HookEnvironment},
};
use sys::process::listener_pid;
use tracing::Level;

use crate::line;

const HOOK: u8 = b'h';
const ERROR: u8 = b'e';
const WARNING: u8 = b'w';
const STATUS: u8 = b's';
const FAILED: u8 = b'x';

/// The network namespace of a process, as a text that no other namespace has.
const NAMESPACE: &str = "/proc/self/ns/net";
/// Bytes of errors and warnings that a client of the control socket reads.
const MAX_REPORTS: u64 = 1 << 20;
/// The error of a hook without a status.
const INTERRUPTED: &str = "the command that ran it was interrupted";

/// The connection to a command in the foreground.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    line: Arc<UnixStream>,
    /// Whether the command is in another network namespace, where hooks would change other things.
    is_elsewhere: bool,
}

impl Caller {
    /// The command that started this process.
    pub fn from_start(line: UnixStream) -> Self {
        Self { line: Arc::new(line), is_elsewhere: false }
    }

    /// A command that connected itself.
    ///
    /// # Errors
    /// It did not introduce itself.
    pub fn from_connection(line: UnixStream) -> anyhow::Result<Self> {
        let namespace = line::receive(&line)?.context("it left")?;
        let is_elsewhere = *namespace != own_namespace();
        // A hook may take any time.
        line.set_read_timeout(None)?;
        Ok(Self { line: Arc::new(line), is_elsewhere })
    }

    /// The process, for those that must not wait for it. 0 if it is in another pid namespace.
    pub fn process(&self) -> io::Result<u32> {
        listener_pid(&self.line)
    }

    /// Has the command run a hook. `None` if it cannot.
    ///
    /// # Errors
    /// The command was interrupted, or did not find the shell.
    pub fn run(&self, hook: &Hook) -> Option<io::Result<ExitStatus>> {
        if self.is_elsewhere || line::send(&self.line, &[&[HOOK], &write_hook(hook)]).is_err() {
            return None;
        }
        let reply = line::receive(&self.line).map_err(io::Error::other);
        Some(reply.and_then(|reply| read_status(&reply.unwrap_or_default())))
    }

    fn report(&self, is_error: bool, text: &str) {
        let kind = if is_error { ERROR } else { WARNING };
        // An error means that the command has ended.
        let _ = line::send(&self.line, &[&[kind], text.as_bytes()]);
    }
}

fn own_namespace() -> Vec<u8> {
    let link = fs::read_link(NAMESPACE).unwrap_or_default();
    link.into_os_string().into_encoded_bytes()
}

fn write_hook(hook: &Hook) -> Vec<u8> {
    let Hook { command, environment: HookEnvironment { interface, file }, folder } = hook;
    let folder = folder.as_ref().map_or(&b""[..], |folder| folder.as_os_str().as_bytes());
    [interface.as_bytes(), file.as_os_str().as_bytes(), folder, command.as_bytes()].join(&b'\0')
}

fn read_hook(message: &[u8]) -> anyhow::Result<Hook> {
    let mut parts = message.splitn(4, |&byte| byte == b'\0');
    let mut next = || parts.next().context("it is incomplete");
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    let interface = str::from_utf8(next()?)?.to_owned();
    let (file, folder) = (path(next()?), path(next()?));
    let folder = (!folder.as_os_str().is_empty()).then_some(folder);
    let command = str::from_utf8(next()?)?.to_owned();
    Ok(Hook { command, environment: HookEnvironment { interface, file }, folder })
}

fn write_status(status: io::Result<ExitStatus>) -> Vec<u8> {
    match status {
        Ok(status) => [&[STATUS][..], &status.into_raw().to_ne_bytes()].concat(),
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    }
}

fn read_status(message: &[u8]) -> io::Result<ExitStatus> {
    let wrong = || io::Error::other(INTERRUPTED);
    match message.split_first().ok_or_else(wrong)? {
        (&STATUS, raw) => {
            let raw = raw.try_into().map_err(|_| wrong())?;
            Ok(ExitStatus::from_raw(i32::from_ne_bytes(raw)))
        }
        (_, text) => Err(io::Error::other(String::from_utf8_lossy(text))),
    }
}

/// Serves a process in the background until it closes the connection: runs hooks, and prints errors
/// and warnings by `print`. Returns whether there was an error.
///
/// # Errors
/// The process sent anything else.
pub fn serve_background(line: &UnixStream, mut print: impl FnMut(&str)) -> anyhow::Result<bool> {
    let mut failed = false;
    while let Some(message) = line::receive(line)? {
        match message.split_first() {
            Some((&HOOK, hook)) => {
                let status = read_hook(hook)?.run();
                line::send(line, &[&write_status(status)])?;
            }
            Some((&(ERROR | WARNING), text)) => {
                failed |= message[0] == ERROR;
                print(&String::from_utf8_lossy(text));
            }
            _ => bail!("an unknown message of the background process"),
        }
    }
    Ok(failed)
}

/// Connects to the guardian of an interface, for [`serve_background`]; `None` without a guardian. A guardian of
/// this user is in a folder that this user may enter.
///
/// # Errors
/// It cannot be reached.
pub fn connect_to_guardian(interface: &str) -> io::Result<Option<UnixStream>> {
    let line = match UnixStream::connect(guardian_socket(interface)) {
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::PermissionDenied => return Ok(None),
            _ => return Err(error),
        },
        Ok(line) => line,
    };
    line::send(&line, &[&own_namespace()])?;
    Ok(Some(line))
}

/// The other recipients of errors and warnings of this process.
enum Recipient {
    /// A client of the control socket.
    Client(Arc<UnixStream>),
    /// A command that attends to the guardian.
    Caller(Caller),
}

static RECIPIENTS: Mutex<Vec<Recipient>> = Mutex::new(Vec::new());

fn recipients() -> MutexGuard<'static, Vec<Recipient>> {
    RECIPIENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends errors and warnings also to a client of the control socket, which sent `linerate-down`.
pub(crate) fn report_to_client(client: Arc<UnixStream>) {
    recipients().push(Recipient::Client(client));
}

/// Sends errors and warnings also to this command.
pub(crate) fn report_to(caller: Caller) {
    recipients().push(Recipient::Caller(caller));
}

/// Sends errors and warnings only to the log again.
pub(crate) fn stop_reporting() {
    recipients().clear();
}

/// Passes an event of the log on to the command that caused it, if one waits. To be called by the
/// logger.
pub fn report(level: Level, text: &str) {
    if level > Level::WARN {
        return;
    }
    let is_error = level == Level::ERROR;
    for recipient in &*recipients() {
        match recipient {
            Recipient::Caller(caller) => caller.report(is_error, text),
            Recipient::Client(client) => {
                let key = if is_error { "error" } else { "warning" };
                let text = text.replace('\n', " ");
                // An error means that the client has ended.
                let _ = writeln!({ &**client }, "{key}={text}");
            }
        }
    }
}

/// Prints what [`report`] wrote to a client of the control socket, until that is closed. Returns
/// whether there was an error.
///
/// # Errors
/// The connection broke.
pub fn read_reports(client: impl BufRead, mut print: impl FnMut(&str)) -> io::Result<bool> {
    let mut failed = false;
    // The peer may have been taken over: neither memory nor the terminal is its own.
    for line in client.take(MAX_REPORTS).split(b'\n') {
        let line = match line {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            line => line?,
        };
        let line = String::from_utf8_lossy(&line);
        if let Some((key @ ("error" | "warning"), text)) = line.split_once('=') {
            failed |= key == "error";
            print(&text.replace(char::is_control, " "));
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_and_its_status_are_read_as_they_were_written() {
        for folder in [None, Some(PathBuf::from("/etc/a b"))] {
            let environment =
                HookEnvironment { interface: "wg0".into(), file: "/etc/a b/wg0.conf".into() };
            let hook = Hook { command: "echo a\tb # \"'".into(), environment, folder };
            assert_eq!(read_hook(&write_hook(&hook)).unwrap(), hook);
        }
        assert!(read_hook(b"wg0\0/etc/wg0.conf\0").is_err());
        for raw in [0, 1 << 8, 9] {
            let status = ExitStatus::from_raw(raw);
            assert_eq!(read_status(&write_status(Ok(status))).unwrap(), status);
        }
        let error = write_status(Err(io::Error::other("no shell")));
        assert_eq!(read_status(&error).unwrap_err().to_string(), "no shell");
        for cut in [&b""[..], b"s", b"s123"] {
            assert_eq!(read_status(cut).unwrap_err().to_string(), INTERRUPTED);
        }
    }

    #[test]
    fn the_text_of_a_peer_cannot_control_the_terminal() {
        let text = b"warning=a\x1b[2J\nnonsense\nerror=b\xff=c\n";
        let mut printed = Vec::new();
        assert!(read_reports(&text[..], |line| printed.push(line.to_owned())).unwrap());
        assert_eq!(printed, ["a [2J", "b\u{fffd}=c"]);
        assert!(!read_reports(&b"warning=a\n"[..], |_| {}).unwrap());
    }
}
