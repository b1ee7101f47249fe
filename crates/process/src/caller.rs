//! Communication between a background process and the command in the foreground that brings an
//! interface up or down. The command runs the hooks, so that they have its terminal, standard
//! input and output. It also prints errors.
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

use crate::framing;

const HOOK: u8 = b'h';
const ERROR: u8 = b'e';
const WARNING: u8 = b'w';
const STATUS: u8 = b's';
const FAILED: u8 = b'x';

/// A link with a text that identifies the network namespace of a process.
const NAMESPACE: &str = "/proc/self/ns/net";
/// Limit of the errors and warnings that a client of the control socket reads, in bytes.
const MAX_REPORTS: u64 = 1 << 20;
/// The error if a hook's status did not arrive.
const INTERRUPTED: &str = "the command that ran it was interrupted";

/// The connection to a command in the foreground.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    line: Arc<UnixStream>,
    /// Whether the command is in another network namespace, in which hooks would have other
    /// effects.
    is_elsewhere: bool,
}

impl Caller {
    /// The command that started this process.
    pub(crate) fn from_start(line: UnixStream) -> Self {
        Self { line: Arc::new(line), is_elsewhere: false }
    }

    /// A command that connected to the socket of a guardian.
    ///
    /// # Errors
    /// The command did not send its network namespace.
    pub(crate) fn from_connection(line: UnixStream) -> anyhow::Result<Self> {
        let namespace = framing::receive(&line)?.context("the connection was closed")?;
        let is_elsewhere = *namespace != own_namespace();
        // A hook may take any time.
        line.set_read_timeout(None)?;
        Ok(Self { line: Arc::new(line), is_elsewhere })
    }

    /// The process ID of the command; 0 if it is in another pid namespace.
    pub(crate) fn process(&self) -> io::Result<u32> {
        listener_pid(&self.line)
    }

    /// Runs a hook in the command. Returns `None` if that is not possible.
    ///
    /// # Errors
    /// The command was interrupted or could not start the shell.
    pub(crate) fn run(&self, hook: &Hook) -> Option<io::Result<ExitStatus>> {
        if self.is_elsewhere || framing::send(&self.line, &[&[HOOK], &write_hook(hook)]).is_err() {
            return None;
        }
        let reply = framing::receive(&self.line).map_err(io::Error::other);
        Some(reply.and_then(|reply| read_status(&reply.unwrap_or_default())))
    }

    fn report(&self, is_error: bool, text: &str) {
        let kind = if is_error { ERROR } else { WARNING };
        // An error means that the command has ended.
        let _ = framing::send(&self.line, &[&[kind], text.as_bytes()]);
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

/// Serves a background process until it closes the connection: runs hooks, and passes errors and
/// warnings to `print`. Returns whether there was an error.
///
/// # Errors
/// The process sent an unknown message.
pub fn serve_background(line: &UnixStream, mut print: impl FnMut(&str)) -> anyhow::Result<bool> {
    let mut failed = false;
    while let Some(message) = framing::receive(line)? {
        match message.split_first() {
            Some((&HOOK, hook)) => {
                let status = read_hook(hook)?.run();
                framing::send(line, &[&write_status(status)])?;
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

/// Connects to the guardian of an interface, for [`serve_background`]. Returns `None` without a
/// guardian, or if this user may not enter its folder.
///
/// # Errors
/// The connection failed.
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
    framing::send(&line, &[&own_namespace()])?;
    Ok(Some(line))
}

/// An additional recipient of this process's errors and warnings.
enum Recipient {
    /// A client of the control socket.
    Client(Arc<UnixStream>),
    /// A command that is connected to the guardian.
    Caller(Caller),
}

static RECIPIENTS: Mutex<Vec<Recipient>> = Mutex::new(Vec::new());

fn recipients() -> MutexGuard<'static, Vec<Recipient>> {
    RECIPIENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a client of the control socket, which sent `linerate-down`, as a recipient.
pub(crate) fn report_to_client(client: Arc<UnixStream>) {
    recipients().push(Recipient::Client(client));
}

/// Adds a command as a recipient.
pub(crate) fn report_to(caller: Caller) {
    recipients().push(Recipient::Caller(caller));
}

/// Removes all recipients, so that errors and warnings are only logged.
pub(crate) fn stop_reporting() {
    recipients().clear();
}

/// Sends an event of the log to all recipients. The logger calls it.
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

/// Prints the messages that [`report`] wrote to a client of the control socket, until the
/// connection is closed. Returns whether there was an error.
///
/// # Errors
/// The connection broke.
pub fn read_reports(client: impl BufRead, mut print: impl FnMut(&str)) -> io::Result<bool> {
    let mut failed = false;
    // An attacker may control the peer, so limit the memory and filter control characters.
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
    fn hook_and_status_are_read_back() {
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
    fn control_characters_of_a_peer_are_replaced() {
        let text = b"warning=a\x1b[2J\nnonsense\nerror=b\xff=c\n";
        let mut printed = Vec::new();
        assert!(read_reports(&text[..], |line| printed.push(line.to_owned())).unwrap());
        assert_eq!(printed, ["a [2J", "b\u{fffd}=c"]);
        assert!(!read_reports(&b"warning=a\n"[..], |_| {}).unwrap());
    }
}
