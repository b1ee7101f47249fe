//! A process that undoes what an interface leaves behind, for a peer that has given up its rights: it
//! runs hooks, undoes settings of the host, and writes the configuration file.
//!
//! ```text
//!   peer, before its sandbox -- its job ----> guardian: this program, executed again, so that it
//!     |                                          | has no keys, no TUN and no sockets
//!     | PreDown  ----------------------------->  | runs these hooks
//!     | SaveConfig and the device's state ---->  | writes the file (`save_config`)
//!     | deletes the interface                    |
//!     | PostDown ----------------------------->  | undoes the undo log, then runs these hooks
//!     x  exits, for any reason --------------->  x  exits
//! ```
//!
//! Each step is accepted once, and in this order. The job, which is everything but the device's
//! state, is sent before an attacker could control the peer.
//!
//! If the peer exits without a step, the undo log stays for the next `up` or `down`, as it does
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
    whole_file,
};

use crate::{events::release_unused, life::LogStyle, log_error::log_error};

/// The name of this program as a guardian, its whole first argument.
const NAME: &str = "linerate-guard";
/// The argument for [`LogStyle::background`].
const BACKGROUND: &str = "background";
/// The argument for [`LogStyle::json`].
const JSON: &str = "json";
/// This program, even if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// The reply to a step that is done.
const DONE: u8 = b'\n';
const GONE: &str = "the guardian is gone: `linerate down` undoes what it leaves behind";

const WRONG_TIME: &str = "the peer asks for this step at the wrong time";

/// The steps, named as keys of the file, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// While the interface exists.
    PreDown,
    /// With the state of the device.
    SaveConfig,
    /// When the interface is gone.
    PostDown,
}

/// The connection to a guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    line: UnixStream,
}

impl Guardian {
    /// Starts one with this job. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(job: &Job, log_style: LogStyle) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg0(NAME).stdin(Stdio::from(OwnedFd::from(theirs)));
        for (argument, is_said) in [(BACKGROUND, log_style.background), (JSON, log_style.json)] {
            command.args(is_said.then_some(argument));
        }
        command.spawn()?;
        // Closes this process's copy of the guardian's end, so that its exit closes the connection.
        drop(command);
        Self::begin(line, &job.write())
    }

    /// Sends the job, and waits for the reply.
    fn begin(mut line: UnixStream, job: &[u8]) -> io::Result<Self> {
        line::send(&line, &[job])?;
        line.read_exact(&mut [0])?;
        Ok(Self { line })
    }

    /// Has it carry out a step, and waits until that is done.
    ///
    /// # Errors
    /// It is gone.
    pub fn tell(&mut self, step: Step) -> anyhow::Result<()> {
        self.say(step, "")
    }

    /// Has it write the state into the file.
    ///
    /// # Errors
    /// It is gone, or the state is too long. Other errors it logs itself.
    pub fn save(&mut self, state: &DeviceState) -> anyhow::Result<()> {
        self.say(Step::SaveConfig, &conf::write_state(state)).context("SaveConfig")
    }

    fn say(&mut self, step: Step, text: &str) -> anyhow::Result<()> {
        line::send(&self.line, &[step.key().as_bytes(), b"\n", text.as_bytes()]).context(GONE)?;
        self.line.read_exact(&mut [0]).context(GONE)
    }
}

/// The guardian that this process's arguments ask for.
pub struct Guard {
    /// How it logs.
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

    /// Serves the peer on standard input, until that closes the connection.
    ///
    /// # Errors
    /// Standard input is no connection to a peer, or the peer sent anything but the next step.
    pub fn run(self) -> anyhow::Result<()> {
        let _signals = Signals::block().context("signals")?;
        process::harden().context("core dumps")?;
        process::rename(NAME).context("its name")?;
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let job = Job::hear(&line)?;
        // Held until this is done, even if the peer is gone.
        let _lock = InterfaceLock::join(&job.interface)?;
        let mut guarding = Guarding::begin(job)?;
        let served = serve(&line, &mut |step, text| guarding.carry_out(step, text));
        log_error(guarding.undo_log.keep());
        served
    }
}

/// What a guardian received.
#[doc(hidden)]
#[derive(Debug)]
pub struct Heard {
    /// Its job, as it would be sent.
    pub job: Vec<u8>,
    /// The part of its job that comes from the file.
    pub conf: Interface,
    /// The steps in their order, each with what it would write into the file.
    pub steps: Vec<(&'static str, Option<String>)>,
}

/// Receives everything, and carries out nothing of it; for the fuzzer.
///
/// # Errors
/// There is no valid job. An error after that ends the steps.
#[doc(hidden)]
pub fn rehearse(line: &UnixStream) -> anyhow::Result<Heard> {
    let job = Job::hear(line)?;
    let message = job.write();
    let conf = job.conf;
    let mut steps = Vec::new();
    let _ = serve(line, &mut |step, text| {
        let saved = (step == Step::SaveConfig).then(|| conf::read_state(text).ok()).flatten();
        steps.push((step.key(), saved.map(|state| conf::write(&conf, &state).to_string())));
        Ok(())
    });
    Ok(Heard { job: message, conf, steps })
}

/// Carries out a step. After an error nothing more is accepted.
type CarryOut<'a> = &'a mut dyn FnMut(Step, &str) -> anyhow::Result<()>;

/// Confirms the job, then serves the steps, which `carry_out` carries out.
fn serve(line: &UnixStream, carry_out: CarryOut<'_>) -> anyhow::Result<()> {
    { line }.write_all(&[DONE])?;
    release_unused();
    let mut last = None;
    while let Some(message) = line::receive(line)? {
        let (step, text) = Step::read(&message).context("the peer sent an unknown step")?;
        ensure!(last < Some(step), "{}: {WRONG_TIME}", step.key());
        last = Some(step);
        let done = carry_out(step, text);
        drop(message);
        wg::stack::wipe();
        done?;
        // If the peer is gone, no next step comes either.
        let _ = { line }.write_all(&[DONE]);
    }
    Ok(())
}

/// What a guardian needs to know for its steps.
#[derive(Debug, PartialEq)]
pub(crate) struct Job {
    pub interface: String,
    /// The interface's index, which stays if it is renamed.
    pub index: u32,
    /// The file, and what it contained at the start, without the device's state.
    pub path: PathBuf,
    pub conf: Interface,
}

impl Job {
    /// The message, which contains no keys.
    fn write(&self) -> Vec<u8> {
        let Self { interface, index, path, conf } = self;
        // A mask is not written without its mark.
        let fwmark = conf.fwmark.unwrap_or_default();
        let text = conf::write(conf, &DeviceState { fwmark, ..DeviceState::default() });
        let index = index.to_string();
        [interface.as_bytes(), index.as_bytes(), path.as_os_str().as_bytes(), text.as_bytes()]
            .join(&b'\0')
    }

    fn hear(line: &UnixStream) -> anyhow::Result<Self> {
        let message = line::receive(line)?.context("the connection was closed")?;
        Self::read(&message).context("its job")
    }

    fn read(message: &[u8]) -> anyhow::Result<Self> {
        let mut parts = message.splitn(4, |&byte| byte == b'\0');
        let mut next = || parts.next().context("it is incomplete");
        let (interface, index) = (str::from_utf8(next()?)?, str::from_utf8(next()?)?.parse()?);
        let (path, text) = (next()?, str::from_utf8(next()?)?);
        let path = PathBuf::from(OsStr::from_bytes(path));
        let conf = Conf::parse(&path.display().to_string(), text)?.interface;
        Ok(Self { interface: interface.to_owned(), index, path, conf })
    }

    /// # Errors
    /// The interface still exists, so the packet filter has to stay.
    fn in_time(&self, step: Step) -> anyhow::Result<()> {
        if step == Step::PostDown {
            // If it was moved away, another link may have its index.
            let link = Netlink::open()?.link(self.index)?.filter(|link| link.is_tun);
            ensure!(link.is_none(), "{}: {WRONG_TIME}", step.key());
        }
        Ok(())
    }

    fn save(&self, text: &str) -> anyhow::Result<()> {
        ensure!(self.conf.save_config, "SaveConfig: the file does not ask for it");
        let state = conf::read_state(text);
        let state = state.with_context(|| format!("SaveConfig: {} stays", self.path.display()))?;
        save_config(&self.path, &self.conf, &state)
    }
}

/// Writes the device's state into the file, and what else the file had at the start.
///
/// # Errors
/// The file could not be written; it is unchanged.
pub(crate) fn save_config(
    path: &Path,
    conf: &Interface,
    state: &DeviceState,
) -> anyhow::Result<()> {
    let written = whole_file::replace(path, &conf::write(conf, state));
    written.with_context(|| path.display().to_string()).context("SaveConfig")
}

struct Guarding {
    job: Job,
    /// As it was at the start, whatever happens to its file.
    undo_log: UndoLog,
}

impl Guarding {
    fn begin(job: Job) -> anyhow::Result<Self> {
        let undo_log = UndoLog::open(&job.interface)?;
        Ok(Self { job, undo_log })
    }

    /// # Errors
    /// It is too early for the step.
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

    /// The step of a message, and the text that comes with it.
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
