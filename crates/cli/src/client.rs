//! A client of a running peer's UAPI socket.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    process::ExitCode,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail};
use host::sockets::find_socket;
use sys::Errno;
use zeroize::Zeroizing;

use crate::print;

/// How long to wait for a reply. That to a ping takes longest.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How often to check whether a peer is exiting.
const EXIT_CHECKS: u32 = 8;
/// The first pause between checks. Each is longer by as much: a second and a half in total.
const EXIT_PAUSE: Duration = Duration::from_millis(50);

/// How often to check whether a guardian has closed its connection, after its peer has.
const GUARDIAN_CHECKS: u32 = 500;
/// The pause between these checks: five seconds in total.
const GUARDIAN_PAUSE: Duration = Duration::from_millis(10);

/// Bytes of one read, which matter for a capture.
const BUFFER: usize = 64 * 1024;

/// The peer refused a request, with this errno as it sent it.
#[derive(Debug)]
pub(crate) struct Refused(pub i32);

impl Refused {
    fn is_busy(&self) -> bool {
        self.0 == -(Errno::EBUSY as i32)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refused with errno {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// A connection to one interface.
pub(crate) struct Client {
    name: String,
    stream: BufReader<UnixStream>,
}

impl Client {
    pub fn connect(name: &str) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(find_socket(name))
            .with_context(|| format!("{name}: no userspace interface with that name is running"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { name: name.to_owned(), stream: BufReader::with_capacity(BUFFER, stream) })
    }

    /// Sends a command without arguments, and returns the lines of the reply.
    pub fn request(&mut self, command: &str) -> anyhow::Result<Zeroizing<String>> {
        self.send(command, "")
    }

    /// Sends a command with lines of arguments, and returns the lines of the reply.
    pub fn send(&mut self, command: &str, lines: &str) -> anyhow::Result<Zeroizing<String>> {
        let what = || format!("{}: {command}", self.name);
        // The arguments may have keys.
        let request = Zeroizing::new(format!("{command}=1\n{lines}\n"));
        self.stream.get_mut().write_all(request.as_bytes()).with_context(what)?;
        let mut answer = Zeroizing::new(String::new());
        loop {
            let start = answer.len();
            match self.stream.read_line(&mut answer).with_context(what)? {
                0 => bail!("{}: no reply", what()),
                1 => break,
                _ => {}
            }
            if let Some(errno) = answer[start..].trim().strip_prefix("errno=")
                && errno != "0"
            {
                return Err(Refused(errno.parse().unwrap_or_default())).with_context(what);
            }
        }
        Ok(answer)
    }

    /// The stream after the replies, without a time-out.
    pub fn into_stream(self) -> io::Result<BufReader<UnixStream>> {
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(self.stream)
    }
}

/// Whether a running peer serves an interface.
pub(crate) fn is_running(name: &str) -> bool {
    Client::connect(name).is_ok()
}

/// Whether the peer stops answering within a moment: the sockets of a killed process are closed one
/// by one.
pub(crate) fn stops_answering(name: &str) -> bool {
    (0..EXIT_CHECKS).any(|check| {
        thread::sleep(EXIT_PAUSE * check);
        !is_running(name)
    })
}

/// How a command ended that prints the errors of other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    Done,
    /// An error was printed.
    Failed,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Failed => Self::FAILURE,
        }
    }
}

/// Shuts an interface down as [`down`] does. Returns `None` if no process answers, or if it is killed
/// meanwhile: the sockets of a killed process are closed one by one.
pub(crate) fn down_running(name: &str) -> anyhow::Result<Option<Outcome>> {
    if !is_running(name) {
        return Ok(None);
    }
    match down(name) {
        Err(error) if !error.is::<Refused>() && stops_answering(name) => Ok(None),
        done => done.map(Some),
    }
}

/// Shuts an interface down, and waits until its process has ended. Meanwhile this process runs its
/// hooks and prints its errors and warnings. After an error the interface may still be up.
pub(crate) fn down(name: &str) -> anyhow::Result<Outcome> {
    let mut client = Client::connect(name)?;
    // Before the peer begins.
    let guardian = Guardian::connect(name).context(name.to_owned())?;
    match client.request("linerate-down") {
        Err(error) if error.downcast_ref::<Refused>().is_some_and(Refused::is_busy) => {
            bail!(
                "wg-quick brought {name} up: `wg-quick down {name}` takes it down, with its rules, \
                 name servers and hooks"
            );
        }
        sent => sent.context("is it an interface of linerate?")?,
    };
    // The connection is closed when the process exits, however long its hooks take.
    client.stream.get_ref().set_read_timeout(None)?;
    // Printed behind those of the guardian, which are the cause.
    let mut reports = Vec::new();
    let report = |text: &str| reports.push(text.to_owned());
    let failed = process::read_reports(&mut client.stream, report).context(name.to_owned())?;
    let guardian_failed = guardian.map_or(Ok(false), |guardian| guardian.end(failed))?;
    reports.iter().for_each(|text| print(text));
    Ok(if failed || guardian_failed { Outcome::Failed } else { Outcome::Done })
}

/// The connection to an interface's guardian, which a thread attends to.
struct Guardian {
    connection: UnixStream,
    thread: JoinHandle<anyhow::Result<bool>>,
}

impl Guardian {
    /// Connects to the guardian, if there is one.
    fn connect(name: &str) -> io::Result<Option<Self>> {
        let Some(connection) = process::connect_to_guardian(name)? else { return Ok(None) };
        let theirs = connection.try_clone()?;
        let attend = move || process::serve_background(&theirs, print);
        let thread = thread::Builder::new().name("guardian".into()).spawn(attend)?;
        Ok(Some(Self { connection, thread }))
    }

    /// Waits until it closes the connection: when its peer has ended, or has `failed` and stays. In
    /// that case it may not know. Returns whether it sent an error.
    fn end(self, failed: bool) -> anyhow::Result<bool> {
        let is_over = |_| {
            let is_over = self.thread.is_finished();
            if !is_over {
                thread::sleep(GUARDIAN_PAUSE);
            }
            is_over
        };
        if failed && !(0..GUARDIAN_CHECKS).any(is_over) {
            self.connection.shutdown(Shutdown::Both)?;
        }
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
