//! A start in the background. The command exits when the child reports that it is ready or that it
//! failed.
//!
//! ```text
//!   parent -- fork --> child: own session, folder /, without stdin and stdout
//!     |                  |
//!     | <---- pipe ----- ready, or failed with a reason; closed if the child died
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
/// The child's first byte if it failed. The reason follows.
const FAILED: u8 = b'-';
/// The maximum length of the reason, in bytes.
const MAX_REASON: u64 = 64 * 1024;
/// How long the parent waits for the exit status of a child that closed the pipe. The child
/// usually exits right afterwards.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the parent checks.
const EXIT_STEP: Duration = Duration::from_millis(1);

/// One of the two processes after a fork.
#[derive(Debug)]
pub enum Fork {
    /// The parent.
    Parent(Starting),
    /// The child, in the background.
    Child(Readiness),
}

/// An error of the background process during its start.
#[derive(Debug)]
pub enum StartError {
    /// It reported this reason.
    Reported(String),
    /// It exited without a report. The status is `None` if it is still running.
    Died(Option<ExitStatus>),
    /// Its report could not be read.
    Os(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => f.write_str(text),
            Self::Died(None) => f.write_str("the background process did not report its state"),
            Self::Died(Some(status)) => write!(f, "the background process died: {status}"),
            Self::Os(error) => {
                write!(f, "cannot read the report of the background process: {error}")
            }
        }
    }
}

impl std::error::Error for StartError {}

/// An error of [`background`].
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// Other threads are running. They would be missing in the child, and their locks would stay
    /// held.
    #[error("cannot fork: other threads are running")]
    Threads,
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Forks into the background: a new session, working directory `/`, without standard input and
/// output. Standard error stays open for logs. Until [`survive_parent`] the child gets SIGTERM
/// when the parent ends, for example by Ctrl-C.
pub fn background() -> Result<Fork, BackgroundError> {
    only_thread().map_err(|_| BackgroundError::Threads)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    let parent = getpid();
    // SAFETY: this is the only thread, so other threads cannot hold locks in the child, and the
    // child may make the same calls as the parent.
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
                // If the error was returned, the child would continue as the parent.
                Err(error) => {
                    readiness.failed(&error.to_string());
                    std::process::exit(1)
                }
            }
        }
    }
}

/// Checks that this is the only thread of the process, which a fork requires.
///
/// # Errors
/// Other threads are running.
pub(crate) fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("other threads are running")),
    }
}

/// Lets a background process continue when its parent ends. In the foreground this does nothing.
/// Call it in the thread that called [`background`], before reporting that the process is ready,
/// and before a sandbox forbids this system call.
pub fn survive_parent() -> io::Result<()> {
    if IN_BACKGROUND.load(Ordering::Relaxed) {
        set_pdeathsig(None)?;
    }
    Ok(())
}

/// Redirects standard error to `/dev/null`. A caller that passed a pipe as standard error waits
/// until it is closed.
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
        // The parent ended before the call above.
        return Err(Errno::ESRCH);
    }
    setsid()?;
    chdir("/")?;
    dup2_stdin(null)?;
    dup2_stdout(null)
}

/// The parent's handle of a starting child.
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

/// Reports to the waiting parent whether the background process is ready. If it is dropped, the
/// start has failed.
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
        // This fails if the parent was killed, which does not matter.
        let _ = self.pipe.write_all(report);
    }
}
