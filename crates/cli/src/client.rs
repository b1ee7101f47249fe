//! A client of a running peer's UAPI socket.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::PathBuf,
    process::ExitCode,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail};
use host::sockets::find_socket;
use sys::{Errno, process::listener_pid};
use zeroize::Zeroizing;

use crate::print;

/// The time limit for a reply. The reply to a ping takes longest.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The number of checks whether a peer is exiting.
const EXIT_CHECKS: u32 = 8;
/// The first pause between checks. Each pause is longer than the last one by this time: 1.4 s in total.
const EXIT_PAUSE: Duration = Duration::from_millis(50);

/// The number of checks whether a guardian has closed its connection after its peer has.
const GUARDIAN_CHECKS: u32 = 500;
/// The pause between these checks: 5 s in total.
const GUARDIAN_PAUSE: Duration = Duration::from_millis(10);

/// Bytes of one read. A capture needs a large buffer.
const BUFFER: usize = 64 * 1024;

/// The peer refused a request with this errno.
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

/// A connection to the peer of one interface.
pub(crate) struct Client {
    name: String,
    stream: BufReader<UnixStream>,
}

impl Client {
    pub(crate) fn connect(name: &str) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(find_socket(name))
            .with_context(|| format!("{name}: no userspace interface with that name is running"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { name: name.to_owned(), stream: BufReader::with_capacity(BUFFER, stream) })
    }

    /// Sends a command without arguments, and returns the lines of the reply.
    pub(crate) fn request(&mut self, command: &str) -> anyhow::Result<Zeroizing<String>> {
        self.send(command, "")
    }

    /// Sends a command with lines of arguments, and returns the lines of the reply.
    pub(crate) fn send(&mut self, command: &str, lines: &str) -> anyhow::Result<Zeroizing<String>> {
        let what = || format!("{}: {command}", self.name);
        // The arguments may contain keys.
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
    pub(crate) fn into_stream(self) -> io::Result<BufReader<UnixStream>> {
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(self.stream)
    }
}

/// The names of the sockets at which a process of this network namespace listens. Without any, the names of
/// those at which processes of other namespaces listen.
pub(crate) fn in_this_namespace(sockets: impl Iterator<Item = (PathBuf, String)>) -> Vec<String> {
    let connected =
        sockets.filter_map(|(socket, name)| Some((UnixStream::connect(socket).ok()?, name)));
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        connected.partition(|(stream, _)| !is_in_other_namespace(stream));
    let names = if here.is_empty() { elsewhere } else { here };
    names.into_iter().map(|(_, name)| name).collect()
}

/// The only name of these.
///
/// # Errors
/// There are several, of things with the name `kind`, or none, which `absent` reports.
pub(crate) fn only_name(names: &[String], kind: &str, absent: &str) -> anyhow::Result<String> {
    match names {
        [] => bail!("{absent}"),
        [name] => Ok(name.clone()),
        names => {
            let names = names.join(" or ");
            bail!("several {kind} run on this machine: add --interface with {names}")
        }
    }
}

/// Whether the process at the other end is in another network namespace. Returns false if its namespace
/// cannot be read.
fn is_in_other_namespace(stream: &UnixStream) -> bool {
    let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/net")).ok();
    let pid = listener_pid(stream).ok();
    let theirs = pid.and_then(|pid| namespace(&pid.to_string()));
    let id = |namespace: fs::Metadata| (namespace.dev(), namespace.ino());
    theirs.map(id).zip(namespace("self").map(id)).is_some_and(|(theirs, ours)| theirs != ours)
}

/// Whether a running peer serves an interface.
pub(crate) fn is_running(name: &str) -> bool {
    Client::connect(name).is_ok()
}

/// Whether the peer stops answering within 1.4 s. The sockets of a killed process are closed one by
/// one.
pub(crate) fn stops_answering(name: &str) -> bool {
    (0..EXIT_CHECKS).any(|check| {
        thread::sleep(EXIT_PAUSE * check);
        !is_running(name)
    })
}

/// The result of a command that prints the errors of other processes.
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

/// Shuts an interface down like [`down`]. Returns `None` if no process answers, or if it is killed
/// meanwhile.
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
    // Connects before the peer begins.
    let guardian = Guardian::connect(name).context(name.to_owned())?;
    match client.request("linerate-down") {
        Err(error) if error.downcast_ref::<Refused>().is_some_and(Refused::is_busy) => {
            bail!(
                "wg-quick brought {name} up: use `wg-quick down {name}`, which also reverts its rules, \
                 name servers and hooks"
            );
        }
        sent => sent.context("the interface may not belong to linerate")?,
    };
    // The connection is closed when the process exits, however long its hooks take.
    client.stream.get_ref().set_read_timeout(None)?;
    // These are printed after the reports of the guardian, which contain the cause.
    let mut reports = Vec::new();
    let report = |text: &str| reports.push(text.to_owned());
    let failed = process::read_reports(&mut client.stream, report).context(name.to_owned())?;
    let guardian_failed = guardian.map_or(Ok(false), |guardian| guardian.end(failed))?;
    reports.iter().for_each(|text| print(text));
    Ok(if failed || guardian_failed { Outcome::Failed } else { Outcome::Done })
}

/// The connection to an interface's guardian, and the thread that serves it.
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

    /// Waits until the guardian closes the connection, which it does when its peer has ended. If the
    /// peer `failed` and still runs, closes the connection after a time limit. Returns whether the
    /// guardian sent an error.
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
