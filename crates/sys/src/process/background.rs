//! A start in the background: the command ends when the child is ready, with
//! the child's word of how it went.
//!
//! ```text
//!   parent -- fork --> child: own session, /, no stdin and stdout
//!     |                  |
//!     | <---- pipe ----- ready, or failed with a text, or dead without a word
//!     v                  v
//!   exit 0 or 1        goes on
//! ```
#![expect(unsafe_code, reason = "fork")]

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::ExitStatus,
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::{ForkResult, Pid, chdir, dup2_stdin, dup2_stdout, fork, pipe2, setsid},
};

/// The child's first byte when it is ready.
const READY: u8 = b'+';
/// The child's first byte before the text that says why it is not.
const FAILED: u8 = b'-';
/// The most bytes of that text that are read.
const MAX_TEXT: u64 = 64 * 1024;
/// How long the parent waits for the exit status of a child that closed the
/// pipe: it dies right behind it, unless it lives on without a word.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks.
const EXIT_STEP: Duration = Duration::from_millis(1);

/// Which of the two processes goes on.
#[derive(Debug)]
pub enum Fork {
    /// The one that was there, once the other is ready or is not going to be.
    Parent(Result<(), StartError>),
    /// The new one, in the background.
    Child(Readiness),
}

/// Why the background process is not ready.
#[derive(Debug)]
pub enum StartError {
    /// It said why.
    Reported(String),
    /// It ended without a word, with this status where it was seen.
    Died(Option<ExitStatus>),
    /// Its word could not be read.
    Os(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(text) => f.write_str(text),
            Self::Died(None) => f.write_str("the background process gave up without a word"),
            Self::Died(Some(status)) => write!(f, "the background process died: {status}"),
            Self::Os(error) => write!(f, "no word from the background process: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why there is no background process.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// Other threads run already; they would not exist in the new process, and
    /// what they hold would stay held.
    #[error("threads were started before the fork")]
    Threads,
    /// The kernel's answer.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Goes on in a new process in the background: a session of its own, the
/// directory `/`, no standard input and output. Standard error stays, for logs.
///
/// # Errors
/// See [`BackgroundError`]; nothing was started.
pub fn background() -> Result<Fork, BackgroundError> {
    only_thread().map_err(|_| BackgroundError::Threads)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
    // SAFETY: this thread is the only one, so that the child has all there is
    // of the process and may do all that the parent may.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Parent { child } => {
            drop(writer);
            Ok(Fork::Parent(verdict(File::from(reader), child)))
        }
        ForkResult::Child => {
            drop(reader);
            let readiness = Readiness { pipe: File::from(writer) };
            match detach(&null) {
                Ok(()) => Ok(Fork::Child(readiness)),
                // The caller would take an error for the parent's.
                Err(error) => {
                    readiness.failed(&error.to_string());
                    std::process::exit(1)
                }
            }
        }
    }
}

/// Whether a fork would take all of the process along.
///
/// # Errors
/// It would not: other threads run.
pub(crate) fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("threads were started before the fork")),
    }
}

/// Sends standard error to nowhere: whoever started a background process through a
/// pipe waits until nobody can write to it any more.
///
/// # Errors
/// There is no `/dev/null`.
pub fn silence_stderr() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stderr(&null)?)
}

fn detach(null: &File) -> nix::Result<()> {
    setsid()?;
    chdir("/")?;
    dup2_stdin(null)?;
    dup2_stdout(null)
}

fn verdict(mut pipe: File, child: Pid) -> Result<(), StartError> {
    let mut word = [0];
    match pipe.read_exact(&mut word) {
        Ok(()) if word[0] == READY => Ok(()),
        Ok(()) => {
            let mut text = Vec::new();
            pipe.take(MAX_TEXT).read_to_end(&mut text).map_err(StartError::Os)?;
            Err(StartError::Reported(String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(StartError::Died(exit_status(child)))
        }
        Err(error) => Err(StartError::Os(error)),
    }
}

fn exit_status(child: Pid) -> Option<ExitStatus> {
    let mut waited = Duration::ZERO;
    while waited < EXIT_PATIENCE {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).ok()? {
            // The raw forms of wait(2).
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

/// The background process's word to the one that waits for it. Dropped without
/// a word, it tells that the start failed.
#[derive(Debug)]
pub struct Readiness {
    pipe: File,
}

impl Readiness {
    /// Tells that all is well.
    pub fn ready(self) {
        self.tell(&[READY]);
    }

    /// Tells why nothing comes of it.
    pub fn failed(self, why: &str) {
        let mut word = vec![FAILED];
        word.extend_from_slice(why.as_bytes());
        self.tell(&word);
    }

    fn tell(mut self, word: &[u8]) {
        // Where the parent was killed meanwhile, nobody is there to be told.
        let _ = self.pipe.write_all(word);
    }
}
