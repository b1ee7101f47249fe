//! A process that takes back what an interface leaves behind, for a peer that has given up the
//! right to: programs, settings of the host, and its own file.
//!
//! ```text
//!   peer, before its sandbox -- name, file, --> guardian: this program anew, so that it has
//!     |                         what it says     | neither keys nor TUN nor sockets
//!     | PreDown  ------------------------------>  | runs these hooks
//!     | SaveConfig and the device's state ----->  | writes it into the file (`saved.rs`)
//!     | the interface's end                       |
//!     | PostDown ------------------------------>  | what the undo_log tells, then these hooks
//!     x  ends, somehow ------------------------>  ends
//! ```
//!
//! Each step is heard once, and in this order. What it runs, and all that it writes but the state,
//! it was told before anybody else could speak for the peer.
//!
//! Where the peer ends without a step, the undo_log stays for the next `up` or `down`, as it does
//! without a guardian.

mod line;

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str,
};

use anyhow::{Context, ensure};
use config::{
    conf::{self, Conf, Interface},
    uapi::DeviceState,
};
use host::{InterfaceLock, UndoLog, hooks};
use sys::{
    netlink::Netlink,
    process::{self, Signals},
};

use crate::{life::LogStyle, log_error::log_error, saved};

/// What this program is called as a guardian: the whole of its first argument.
const NAME: &str = "linerate-guard";
/// The argument of one whose standard error nobody sees.
const BACKGROUND: &str = "background";
/// The argument of one whose standard error programs read.
const JSON: &str = "json";
/// This program, also where its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// What it answers when a step is done.
const DONE: u8 = b'\n';
/// Why a step finds nobody.
const GONE: &str = "the guardian is gone: `linerate down` takes back what it leaves";

/// Why a step is not heard.
const OUT_OF_TURN: &str = "the peer says it out of its turn";

/// A step to the guardian, and the key of the file that it stands for; in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// While the interface is there.
    PreDown,
    /// With the state of the device.
    SaveConfig,
    /// When the interface is gone. It is the last.
    PostDown,
}

/// The line to a guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    line: UnixStream,
}

impl Guardian {
    /// Starts one with this job. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// There is no such process to be had.
    pub fn start(job: &[u8], log_style: LogStyle) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg0(NAME).stdin(Stdio::from(OwnedFd::from(theirs)));
        for (argument, is_said) in [(BACKGROUND, log_style.background), (JSON, log_style.json)] {
            command.args(is_said.then_some(argument));
        }
        command.spawn()?;
        // Only its own end of the line is left, which it cuts where it ends.
        drop(command);
        Self::job(line, job)
    }

    /// Tells what it is there for, and hears that it knows.
    fn job(mut line: UnixStream, job: &[u8]) -> io::Result<Self> {
        line::send(&line, &[job])?;
        line.read_exact(&mut [0])?;
        Ok(Self { line })
    }

    /// Has it do its part, and waits for that.
    ///
    /// # Errors
    /// It is gone.
    pub fn tell(&mut self, step: Step) -> anyhow::Result<()> {
        self.say(step, "")
    }

    /// Has it write the state into the file.
    ///
    /// # Errors
    /// It is gone, or there is more state than it hears of. What keeps it from writing it says
    /// itself.
    pub fn save(&mut self, state: &DeviceState) -> anyhow::Result<()> {
        self.say(Step::SaveConfig, &saved::text(state)).context("SaveConfig")
    }

    fn say(&mut self, step: Step, text: &str) -> anyhow::Result<()> {
        line::send(&self.line, &[step.key().as_bytes(), b"\n", text.as_bytes()]).context(GONE)?;
        self.line.read_exact(&mut [0]).context(GONE)
    }
}

/// What the arguments of this process say of a guardian.
pub struct Guard {
    /// How it tells what it does.
    pub log_style: LogStyle,
}

impl Guard {
    /// Whether this process was started as one.
    pub fn asked_for(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let is_guardian = arguments.next().is_some_and(|name| name == NAME);
        let arguments: Vec<_> = arguments.collect();
        let says = |step: &str| arguments.iter().any(|argument| argument == step);
        let log_style = LogStyle { background: says(BACKGROUND), json: says(JSON) };
        is_guardian.then_some(Self { log_style })
    }

    /// Does what the line on standard input says, until it is cut.
    ///
    /// # Errors
    /// It is no line to a peer.
    pub fn run(self) -> anyhow::Result<()> {
        let _signals = Signals::block().context("signals")?;
        process::harden().context("core dumps")?;
        process::rename(NAME).context("its name")?;
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let job = Job::hear(&line)?;
        // Also when the peer is gone, until this is done.
        let _lock = InterfaceLock::join(&job.interface)?;
        let mut guarding = Guarding::begin(job)?;
        let served = serve(&line, &mut |step, text| guarding.carry_out(step, text));
        log_error(guarding.undo_log.keep());
        served
    }
}

/// What a guardian heard on a line.
#[doc(hidden)]
#[derive(Debug)]
pub struct Heard {
    /// Its job, as it would be told.
    pub job: Vec<u8>,
    /// The part of its job that is the file's.
    pub conf: Interface,
    /// The steps in their order, each with what it would write into the file.
    pub steps: Vec<(&'static str, Option<String>)>,
}

/// Hears a whole line, and does nothing of what it says: what the fuzzer talks to.
///
/// # Errors
/// It has no job. What is wrong behind that is the end of the steps.
#[doc(hidden)]
pub fn rehearse(line: &UnixStream) -> anyhow::Result<Heard> {
    let Job { interface, index, path, conf } = Job::hear(line)?;
    let job = job((&interface, index), &path, &conf);
    let mut steps = Vec::new();
    let _ = serve(line, &mut |step, text| {
        let saved = (step == Step::SaveConfig).then(|| saved::read(text).ok()).flatten();
        steps.push((step.key(), saved.map(|state| conf::write(&conf, &state).to_string())));
        Ok(())
    });
    Ok(Heard { job, conf, steps })
}

/// What is done at a step. After an error the peer is not heard any more.
type CarryOut<'a> = &'a mut dyn FnMut(Step, &str) -> anyhow::Result<()>;

/// Answers that it knows its job, and then the steps behind that, which `carry_out` does.
fn serve(line: &UnixStream, carry_out: CarryOut<'_>) -> anyhow::Result<()> {
    { line }.write_all(&[DONE])?;
    if let Err(error) = process::release_code() {
        tracing::debug!(%error, "code that is not used stays resident");
    }
    let mut last = None;
    while let Some(message) = line::receive(line)? {
        let (step, text) = Step::read(&message).context("what the peer says is no step")?;
        ensure!(last < Some(step), "{}: {OUT_OF_TURN}", step.key());
        last = Some(step);
        let done = carry_out(step, text);
        drop(message);
        wg::stack::wipe();
        done?;
        // Where nobody hears it, the next step does not come either.
        let _ = { line }.write_all(&[DONE]);
    }
    Ok(())
}

/// What a guardian was told that it is to do.
#[derive(Debug, PartialEq)]
struct Job {
    interface: String,
    /// The interface's, whatever it is called later.
    index: u32,
    /// The file, and what it said at the start of what is not the device's.
    path: PathBuf,
    conf: Interface,
}

/// The message of a job, which has no key.
pub(crate) fn job((interface, index): (&str, u32), path: &Path, conf: &Interface) -> Vec<u8> {
    // A mask is not written without its mark.
    let state = DeviceState { fwmark: conf.fwmark.unwrap_or_default(), ..DeviceState::default() };
    let text = conf::write(conf, &state);
    let index = index.to_string();
    [interface.as_bytes(), index.as_bytes(), path.as_os_str().as_bytes(), text.as_bytes()]
        .join(&b'\0')
}

impl Job {
    fn hear(line: &UnixStream) -> anyhow::Result<Self> {
        let message = line::receive(line)?.context("the line was cut")?;
        Self::read(&message).context("its job")
    }

    fn read(message: &[u8]) -> anyhow::Result<Self> {
        let mut parts = message.splitn(4, |&byte| byte == b'\0');
        let mut next = || parts.next().context("it is cut");
        let (interface, index) = (str::from_utf8(next()?)?, str::from_utf8(next()?)?.parse()?);
        let (path, text) = (next()?, str::from_utf8(next()?)?);
        let path = PathBuf::from(OsStr::from_bytes(path));
        let conf = Conf::parse(&path.display().to_string(), text)?.interface;
        Ok(Self { interface: interface.to_owned(), index, path, conf })
    }

    /// # Errors
    /// The interface is still there, and with it what the packet filter keeps from it.
    fn in_time(&self, step: Step) -> anyhow::Result<()> {
        if step == Step::PostDown {
            // Where it was moved away another link may have its index.
            let link = Netlink::open()?.link(self.index)?.filter(|link| link.is_tun);
            ensure!(link.is_none(), "{}: {OUT_OF_TURN}", step.key());
        }
        Ok(())
    }

    fn save(&self, text: &str) -> anyhow::Result<()> {
        ensure!(self.conf.save_config, "SaveConfig: the file does not ask for it");
        let state = saved::read(text);
        let state = state.with_context(|| format!("SaveConfig: {} stays", self.path.display()))?;
        saved::write(&self.path, &self.conf, &state).context("SaveConfig")
    }
}

/// What a guardian does.
struct Guarding {
    job: Job,
    /// As it was at the start, whatever becomes of its file.
    undo_log: UndoLog,
}

impl Guarding {
    fn begin(job: Job) -> anyhow::Result<Self> {
        let undo_log = UndoLog::open(&job.interface)?;
        Ok(Self { job, undo_log })
    }

    /// # Errors
    /// Its time has not come.
    fn carry_out(&mut self, step: Step, text: &str) -> anyhow::Result<()> {
        self.job.in_time(step)?;
        let Job { interface, conf, .. } = &self.job;
        let hooks = match step {
            Step::PreDown => &conf.hooks.pre_down,
            Step::SaveConfig => {
                log_error(self.job.save(text));
                return Ok(());
            }
            Step::PostDown => {
                let undone = Netlink::open().map(|netlink| self.undo_log.undo(&netlink));
                log_error(undone.map_err(Into::into));
                &conf.hooks.post_down
            }
        };
        log_error(hooks::run(step.key(), hooks, interface));
        Ok(())
    }
}

impl Step {
    const ALL: [Self; 3] = [Self::PreDown, Self::SaveConfig, Self::PostDown];

    /// The step of a message, and what it says beside it.
    fn read(message: &[u8]) -> Option<(Self, &str)> {
        let (key, text) = str::from_utf8(message).ok()?.split_once('\n')?;
        let step = Self::ALL.into_iter().find(|step| step.key() == key)?;
        (step == Self::SaveConfig || text.is_empty()).then_some((step, text))
    }

    fn key(self) -> &'static str {
        match self {
            Self::PreDown => "PreDown",
            Self::SaveConfig => "SaveConfig",
            Self::PostDown => "PostDown",
        }
    }
}

#[cfg(test)]
mod tests;
