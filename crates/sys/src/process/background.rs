//! A start in the background: the command exits when the child reports that it is ready, or why it
//! failed.
//!
//! ```text
//!   parent -- fork --> child: own session, /, no stdin and stdout
//!     |                  |
//!     | <---- pipe ----- ready; failed, with a reason; or closed: it died
//!     v                  v
//!   exit 0 or 1        keeps running
//! ```
#![expect(unsafe_code, reason = "fork")]

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::ExitStatus,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::prctl::set_pdeathsig,
    sys::signal::Signal::SIGTERM,
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::{
        ForkResult, Pid, chdir, dup2_stdin, dup2_stdout, fork, getpid, getppid, pipe2, setsid,
    },
};

/// The child's first byte if it is ready.
const READY: u8 = b'+';
/// The child's first byte before the reason why it failed.
const FAILED: u8 = b'-';
/// The most bytes of that reason.
const MAX_REASON: u64 = 64 * 1024;
/// How long the parent waits for the exit status of a child that closed the pipe. It usually exits
/// right afterwards.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the parent checks.
const EXIT_STEP: Duration = Duration::from_millis(1);

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Fork {
    /// The parent.
    Parent(Starting),
    /// The child, in the background.
    Child(Readiness),
}

/// Why the background process is not ready.
#[derive(Debug)]
pub enum StartError {
    /// It reported why.
    Reported(String),
    /// It exited without a report; the status is `None` if it is still running.
    Died(Option<ExitStatus>),
    /// Its report could not be read.
    Os(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => f.write_str(text),
            Self::Died(None) => f.write_str("the background process reported nothing"),
            Self::Died(Some(status)) => write!(f, "the background process died: {status}"),
            Self::Os(error) => {
                write!(f, "cannot read the report of the background process: {error}")
            }
        }
    }
}

impl std::error::Error for StartError {}

/// Why there is no background process.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// Other threads are running. They would not exist in the child, and their locks would stay
    /// held.
    #[error("cannot fork: other threads are running")]
    Threads,
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Forks into the background: a session of its own, working directory `/`, no standard input and
/// output. Standard error is kept, for logs. Until [`survive_parent`] it gets SIGTERM when the parent
/// ends, as by Ctrl-C.
pub fn background() -> Result<Fork, BackgroundError> {
    only_thread().map_err(|_| BackgroundError::Threads)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    let parent = getpid();
    // SAFETY: this thread is the only one, so the child has no locks held by others and may do all
    // that the parent may.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Parent { child } => {
            drop(writer);
            Ok(Fork::Parent(Starting { pipe: File::from(reader), child }))
        }
        ForkResult::Child => {
            drop(reader);
            let readiness = Readiness { pipe: File::from(writer) };
            match detach(&null, parent) {
                Ok(()) => Ok(Fork::Child(readiness)),
                // Returning it would make the child continue as the parent.
                Err(error) => {
                    readiness.failed(&error.to_string());
                    std::process::exit(1)
                }
            }
        }
    }
}

/// Checks that this is the process's only thread, so that it can fork.
///
/// # Errors
/// Other threads are running.
pub(crate) fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("other threads are running")),
    }
}

/// Lets a background process go on when its parent ends; in the foreground nothing changes. To be
/// called by the thread that started it, before it is ready, and before it gives up the system call
/// for it.
pub fn survive_parent() -> io::Result<()> {
    if IN_BACKGROUND.load(Ordering::Relaxed) {
        set_pdeathsig(None)?;
    }
    Ok(())
}

/// Redirects standard error to `/dev/null`: whoever started a background process with a pipe waits
/// until that is closed.
pub fn silence_stderr() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stderr(&null)?)
}

/// Whether this process is the child of [`background`].
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

fn detach(null: &File, parent: Pid) -> nix::Result<()> {
    set_pdeathsig(SIGTERM)?;
    IN_BACKGROUND.store(true, Ordering::Relaxed);
    if getppid() != parent {
        // It ended before.
        return Err(Errno::ESRCH);
    }
    setsid()?;
    chdir("/")?;
    dup2_stdin(null)?;
    dup2_stdout(null)
}

/// A child that is starting, as its parent sees it.
#[derive(Debug)]
pub struct Starting {
    pipe: File,
    child: Pid,
}

impl Starting {
    /// Waits until the child is ready.
    ///
    /// # Errors
    /// It failed or died.
    pub fn wait(mut self) -> Result<(), StartError> {
        let mut status = [0];
        match self.pipe.read_exact(&mut status) {
            Ok(()) if status[0] == READY => Ok(()),
            Ok(()) => {
                let mut text = Vec::new();
                self.pipe.take(MAX_REASON).read_to_end(&mut text).map_err(StartError::Os)?;
                Err(StartError::Reported(String::from_utf8_lossy(&text).into_owned()))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(StartError::Died(exit_status(self.child)))
            }
            Err(error) => Err(StartError::Os(error)),
        }
    }
}

fn exit_status(child: Pid) -> Option<ExitStatus> {
    let mut waited = Duration::ZERO;
    while waited < EXIT_TIMEOUT {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).ok()? {
            // `ExitStatus` takes the raw form of wait(2).
            WaitStatus::Exited(_, code) => return Some(ExitStatus::from_raw(code << 8)),
            WaitStatus::Signaled(_, signal, _) => {
                return Some(ExitStatus::from_raw(signal as i32));
            }
            _ => std::thread::sleep(EXIT_STEP),
        }
        waited += EXIT_STEP;
    }
    None
}

/// Reports to the waiting parent whether the background process is ready. Dropping it reports a
/// failed start.
#[derive(Debug)]
pub struct Readiness {
    pipe: File,
}

impl Readiness {
    pub fn ready(self) {
        self.report(&[READY]);
    }

    pub fn failed(self, reason: &str) {
        let mut report = vec![FAILED];
        report.extend_from_slice(reason.as_bytes());
        self.report(&report);
    }

    fn report(mut self, report: &[u8]) {
        // If the parent was killed, nobody reads it.
        let _ = self.pipe.write_all(report);
    }
}
