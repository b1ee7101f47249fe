//! A privileged process that takes an interface down for a confined peer: it runs hooks, undoes
//! changes of the host, and writes the configuration file.
//!
//! ```text
//!   peer, before its sandbox -- its job ----> guardian: this program, executed again, so that it
//!     |                                          | holds neither keys nor TUN nor sockets
//!     | PreDown  ----------------------------->  | runs these hooks
//!     | SaveConfig and the device's state ---->  | writes the file (`save_config`)
//!     | (SaveElsewhere and the state) -------->  | writes another file, as that one failed
//!     | deletes the interface                    |
//!     | PostDown ----------------------------->  | undoes the undo log, then runs these hooks
//!     x  exits, for any reason --------------->  x  exits
//! ```
//!
//! Each step is accepted once and in this order. After a failure of PreDown or SaveConfig the
//! interface may stay, and all steps are accepted again. The job contains everything except the
//! device's state. It is sent before an attacker could control the peer.
//!
//! `linerate down` first connects to the guardian's socket. While it waits, hooks run in its
//! terminal, and it prints errors (`caller.rs`).
//!
//! If the peer exits without a step, the undo log remains for the next `up` or `down`, as without
//! a guardian.

use std::{
    ffi::OsStr,
    fmt,
    io::{self, Read, Write},
    os::{
        fd::AsFd as _,
        unix::{
            ffi::OsStrExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::ExitStatus,
    str,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use config::{
    conf::{self, Conf, Interface},
    uapi::DeviceState,
};
use host::{
    InterfaceLock, NoIpv6, UndoLog, dns, guardian_socket,
    hooks::{Hook, HookEnvironment},
    rescue_file,
};
use ipnet::IpNet;
use sys::{
    SocketFile, atomic_file,
    netlink::Netlink,
    process::{self, Signals},
};

use crate::{
    caller::{self, Caller},
    children,
    events::release_unused,
    framing,
    lifecycle::LogStyle,
    log_error::log_error,
};

/// The name of this program as a guardian, which is its first argument.
pub(crate) const NAME: &str = "linerate-guard";
/// The reply to an accepted job or a successful step.
const DONE: u8 = b'\n';
/// The reply to a failed step, and the first byte of the reply to a refused job, before the
/// reason.
const FAILED: u8 = b'-';
/// Limit of that reason in bytes.
const MAX_REASON: u64 = 4096;
/// The time in which a command in the foreground must send its first message or read one.
const CALLER_TIME: Duration = Duration::from_secs(10);
const GONE: &str = "the guardian has exited: `linerate down` undoes the remaining changes";

const WRONG_TIME: &str = "the peer requests this step at the wrong time";

/// The steps in their order. Most are named like keys of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Runs hooks while the interface exists.
    PreDown,
    /// Writes the state of the device to the file.
    SaveConfig,
    /// Writes the state to another file, if that failed and the interface goes down nevertheless.
    SaveElsewhere,
    /// Undoes changes of the host and runs hooks after the interface was deleted.
    PostDown,
}

/// A step failed. The guardian logged the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepFailed(pub Step);

impl fmt::Display for StepFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.0.key())
    }
}

impl std::error::Error for StepFailed {}

/// The connection to a guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    line: UnixStream,
}

impl Guardian {
    /// Starts a guardian with this job. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// The process cannot be started, or it refused the job.
    pub(crate) fn start(job: &Job, log_style: LogStyle) -> anyhow::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        children::start(NAME, log_style, theirs)?;
        Self::begin(line, &job.write())
    }

    /// Sends the job, and waits for the reply.
    fn begin(mut line: UnixStream, job: &[u8]) -> anyhow::Result<Self> {
        framing::send(&line, &[job])?;
        let mut reply = [0];
        if line.read_exact(&mut reply).is_err() {
            bail!("it exited at once");
        }
        if reply == [DONE] {
            return Ok(Self { line });
        }
        let mut reason = Vec::new();
        line.take(MAX_REASON).read_to_end(&mut reason)?;
        bail!("{}", String::from_utf8_lossy(&reason))
    }

    /// Requests a step without the state, and waits until it is done.
    ///
    /// # Errors
    /// [`StepFailed`], or the guardian has exited.
    pub(crate) fn run_step(&mut self, step: Step) -> anyhow::Result<()> {
        self.send_step(step, "")
    }

    /// Requests that the guardian writes the state to the file or to another one.
    ///
    /// # Errors
    /// [`StepFailed`], the guardian has exited, or the state is too long.
    pub(crate) fn save(&mut self, step: Step, state: &DeviceState) -> anyhow::Result<()> {
        self.send_step(step, &conf::write_state(state))
    }

    fn send_step(&mut self, step: Step, text: &str) -> anyhow::Result<()> {
        framing::send(&self.line, &[step.key().as_bytes(), b"\n", text.as_bytes()])
            .context(GONE)?;
        let mut reply = [0];
        self.line.read_exact(&mut reply).context(GONE)?;
        if reply == [DONE] { Ok(()) } else { Err(StepFailed(step).into()) }
    }
}

/// Serves the peer on standard input, until that closes the connection.
///
/// # Errors
/// Standard input is not a connection to a peer, the job cannot be started, or the peer sent a
/// message other than the next step.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    let _signals = Signals::block().context("signals")?;
    process::harden().context("core dumps")?;
    process::set_process_name(NAME).context("its name")?;
    let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut server = GuardianServer::receive(&line)?;
    let served = serve(&line, &mut |step, text| server.carry_out(step, text));
    log_error(server.undo_log.rewrite_if_removed());
    served
}

/// The messages that a guardian received.
#[doc(hidden)]
#[derive(Debug)]
pub struct Rehearsal {
    /// The job, encoded again.
    pub job: Vec<u8>,
    /// The part of the job that comes from the file.
    pub conf: Interface,
    /// The steps in their order, each with the text that it would write to the file.
    pub steps: Vec<(&'static str, Option<String>)>,
}

/// Receives all messages without executing them. Used by the fuzzer.
///
/// # Errors
/// The job is invalid. A later error ends the steps.
#[doc(hidden)]
pub fn rehearse(line: &UnixStream) -> anyhow::Result<Rehearsal> {
    let job = Job::receive(line)?;
    let message = job.write();
    let conf = job.conf;
    let mut steps = Vec::new();
    let _ = serve(line, &mut |step, text| {
        let saved = step.has_text().then(|| conf::read_state(text).ok()).flatten();
        steps.push((step.key(), saved.map(|state| conf::write(&conf, &state).to_string())));
        Ok(StepResult::Succeeded)
    });
    Ok(Rehearsal { job: message, conf, steps })
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepResult {
    Succeeded,
    /// The reason has been logged.
    Failed,
}

/// Executes a step. After an error no further message is accepted.
type CarryOut<'a> = &'a mut dyn FnMut(Step, &str) -> anyhow::Result<StepResult>;

/// Confirms the job, then serves the steps. `carry_out` executes them.
fn serve(line: &UnixStream, carry_out: CarryOut<'_>) -> anyhow::Result<()> {
    { line }.write_all(&[DONE])?;
    release_unused();
    let (mut last, mut may_restart) = (None, false);
    while let Some(message) = framing::receive(line)? {
        let (step, text) = Step::read(&message).context("the peer sent an unknown step")?;
        let is_next = last < Some(step) || may_restart && step == Step::PreDown;
        ensure!(is_next, "{}: {WRONG_TIME}", step.key());
        last = Some(step);
        let done = carry_out(step, text);
        drop(message);
        wg::stack::wipe();
        let done = done?;
        may_restart = done == StepResult::Failed && step.may_cancel();
        // If the peer has exited, the next receive returns the end.
        let _ = { line }.write_all(&[if done == StepResult::Succeeded { DONE } else { FAILED }]);
    }
    Ok(())
}

/// The input of a guardian for its steps.
#[derive(Debug, PartialEq)]
pub(crate) struct Job {
    pub interface: String,
    /// The interface's index, which does not change when it is renamed.
    pub index: u32,
    /// The file and its contents at the start, without the device's state.
    pub path: PathBuf,
    pub conf: Interface,
}

impl Job {
    /// Encodes the job. The message does not contain keys.
    fn write(&self) -> Vec<u8> {
        let Self { interface, index, path, conf } = self;
        // A mask is written only together with its mark.
        let fwmark = conf.fwmark.unwrap_or_default();
        let text = conf::write(conf, &DeviceState { fwmark, ..DeviceState::default() });
        let index = index.to_string();
        [interface.as_bytes(), index.as_bytes(), path.as_os_str().as_bytes(), text.as_bytes()]
            .join(&b'\0')
    }

    fn receive(line: &UnixStream) -> anyhow::Result<Self> {
        let message = framing::receive(line)?.context("the connection was closed")?;
        Self::read(&message).context("invalid job")
    }

    fn read(message: &[u8]) -> anyhow::Result<Self> {
        let mut parts = message.splitn(4, |&byte| byte == b'\0');
        let mut next = || parts.next().context("the message is incomplete");
        let (interface, index) = (str::from_utf8(next()?)?, str::from_utf8(next()?)?.parse()?);
        let (path, text) = (next()?, str::from_utf8(next()?)?);
        let path = PathBuf::from(OsStr::from_bytes(path));
        let conf = Conf::parse(&path.display().to_string(), text)?.interface;
        Ok(Self { interface: interface.to_owned(), index, path, conf })
    }

    /// # Errors
    /// The step is PostDown, but the interface exists, so the packet filter must stay.
    fn check_timing(&self, step: Step) -> anyhow::Result<()> {
        if step == Step::PostDown {
            // If it was moved to another namespace, another link may have its index.
            let link = Netlink::open()?.link(self.index)?.filter(|link| link.is_tun);
            ensure!(link.is_none(), "{}: {WRONG_TIME}", step.key());
        }
        Ok(())
    }

    /// Writes the state and the interface's current addresses, MTU and name servers to the file,
    /// or to `elsewhere`.
    fn save(&self, text: &str, elsewhere: Option<&Path>) -> anyhow::Result<()> {
        ensure!(self.conf.save_config, "SaveConfig is not set in the file");
        let state = conf::read_state(text);
        let state = state
            .with_context(|| format!("SaveConfig: {} was not changed", self.path.display()))?;
        save_config(elsewhere.unwrap_or(&self.path), &self.conf_now()?, &state)
    }

    /// The contents of the file with the interface's current addresses, name servers and, as in
    /// wg-quick(8), the MTU if the file has one. If the interface is in another network namespace,
    /// the values of the file are used.
    fn conf_now(&self) -> anyhow::Result<Interface> {
        let mut conf = self.conf.clone();
        let netlink = Netlink::open()?;
        if let Some(link) = netlink.link(self.index)?.filter(|link| link.is_tun) {
            let addresses = netlink.addresses(self.index)?;
            let has_ipv6 = NoIpv6::of(&netlink, self.index)?.is_none();
            conf.addresses = addresses_now(&conf.addresses, addresses, has_ipv6);
            conf.mtu = conf.mtu.map(|mtu| link.mtu.try_into().unwrap_or(mtu));
            conf.dns = dns::current(&self.interface, &conf.dns);
        }
        Ok(conf)
    }
}

/// The addresses of a link: those of the file in its order, then others. IPv6 link-local addresses
/// that are not in the file are skipped, because the kernel added them. IPv6 addresses of the file
/// are included if the link cannot have IPv6.
fn addresses_now(in_file: &[IpNet], on_link: Vec<IpNet>, has_ipv6: bool) -> Vec<IpNet> {
    let is_kernels =
        |net: &IpNet| matches!(net, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
    let stays = |net: &&IpNet| on_link.contains(net) || (!has_ipv6 && net.addr().is_ipv6());
    let stays = in_file.iter().filter(stays).copied();
    let is_new = |net: &&IpNet| !in_file.contains(net) && !is_kernels(net);
    stays.chain(on_link.iter().filter(is_new).copied()).collect()
}

/// Writes the device's state and the other settings to the file.
///
/// # Errors
/// The file could not be written; it is unchanged.
fn save_config(path: &Path, conf: &Interface, state: &DeviceState) -> anyhow::Result<()> {
    let written = atomic_file::replace(path, &conf::write(conf, state));
    written.with_context(|| path.display().to_string()).context("SaveConfig")
}

struct GuardianServer {
    job: Job,
    /// The log at the start. Later changes of its file are ignored.
    undo_log: UndoLog,
    callers: Callers,
}

impl GuardianServer {
    /// Receives and starts the job. An error is also sent to the peer.
    fn receive(line: &UnixStream) -> anyhow::Result<Self> {
        let begun = Job::receive(line).and_then(|job| {
            let callers = Callers::open(&job.interface)?;
            Self::begin(job, callers)
        });
        begun.inspect_err(|error| {
            // An error means that the peer has exited.
            let _ = { line }.write_all(&[&[FAILED][..], format!("{error:#}").as_bytes()].concat());
        })
    }

    fn begin(job: Job, callers: Callers) -> anyhow::Result<Self> {
        let undo_log = UndoLog::open(&job.interface)?;
        Ok(Self { job, undo_log, callers })
    }

    /// # Errors
    /// The step came too early.
    fn carry_out(&mut self, step: Step, text: &str) -> anyhow::Result<StepResult> {
        self.job.check_timing(step)?;
        self.callers.accept();
        let Err(error) = self.attempt(step, text) else { return Ok(StepResult::Succeeded) };
        tracing::error!("{error:#}");
        if step.may_cancel() {
            // Their `down` has failed.
            self.callers.close();
        }
        Ok(StepResult::Failed)
    }

    fn attempt(&mut self, step: Step, text: &str) -> anyhow::Result<()> {
        let hooks = match step {
            Step::PreDown => &self.job.conf.hooks.pre_down,
            Step::SaveConfig => return self.job.save(text, None),
            Step::SaveElsewhere => {
                let path = rescue_file(&self.job.interface);
                self.job.save(text, Some(&path))?;
                let (path, own) = (path.display(), self.job.path.display());
                tracing::warn!("SaveConfig: the state was written to {path} instead of {own}");
                return Ok(());
            }
            Step::PostDown => {
                let undone = Netlink::open().map(|netlink| self.undo_log.undo(&netlink));
                log_error(undone.map_err(Into::into));
                &self.job.conf.hooks.post_down
            }
        };
        let Job { interface, path, .. } = &self.job;
        let environment = HookEnvironment { interface: interface.clone(), file: path.clone() };
        environment.run_down(step.key(), hooks, |hook| self.callers.run(hook))
    }
}

/// The commands in the foreground that wait for the guardian.
#[derive(Default)]
struct Callers {
    /// The socket that they connect to.
    listener: Option<Listener>,
    accepted: Vec<Caller>,
}

struct Listener {
    /// Locked until this process exits, even if the peer has exited.
    lock: InterfaceLock,
    socket: UnixListener,
    _file: SocketFile,
}

impl Callers {
    /// Acquires the interface lock and listens for commands.
    fn open(interface: &str) -> anyhow::Result<Self> {
        let lock = InterfaceLock::join(interface)?;
        let path = guardian_socket(interface);
        let listening = SocketFile::listen(&path).and_then(|(listener, file)| {
            listener.set_nonblocking(true)?;
            Ok((listener, file))
        });
        let (socket, _file) = listening.with_context(|| path.display().to_string())?;
        let listener = Listener { lock, socket, _file };
        Ok(Self { listener: Some(listener), accepted: Vec::new() })
    }

    /// Accepts the waiting commands.
    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        while let Ok((line, _)) = listener.socket.accept() {
            let times = line.set_read_timeout(Some(CALLER_TIME));
            let times = times.and_then(|()| line.set_write_timeout(Some(CALLER_TIME)));
            match times.map_err(Into::into).and_then(|()| Caller::from_connection(line)) {
                Ok(caller) => {
                    caller::report_to(caller.clone());
                    self.accepted.push(caller);
                }
                Err(error) => tracing::debug!("a command disconnected at once: {error:#}"),
            }
        }
    }

    /// Closes the connections.
    fn close(&mut self) {
        self.accepted.clear();
        caller::stop_reporting();
    }

    /// Runs a hook in the terminal of a waiting command, or without a terminal if no command
    /// waits.
    fn run(&self, hook: &Hook) -> io::Result<ExitStatus> {
        for caller in &self.accepted {
            let runner = caller.process()?;
            let _runner =
                self.listener.as_ref().map(|listener| listener.lock.record_hook_runner(runner));
            if let Some(done) = caller.run(hook) {
                return done;
            }
        }
        hook.run_alone()
    }
}

impl Step {
    const ALL: [Self; 4] = [Self::PreDown, Self::SaveConfig, Self::SaveElsewhere, Self::PostDown];

    /// The step of a message, and the text that comes with it.
    fn read(message: &[u8]) -> Option<(Self, &str)> {
        let (key, text) = str::from_utf8(message).ok()?.split_once('\n')?;
        let step = Self::ALL.into_iter().find(|step| step.key() == key)?;
        (step.has_text() || text.is_empty()).then_some((step, text))
    }

    /// Whether the message contains the state of the device.
    fn has_text(self) -> bool {
        matches!(self, Self::SaveConfig | Self::SaveElsewhere)
    }

    /// Whether the interface may stay if the step fails.
    fn may_cancel(self) -> bool {
        matches!(self, Self::PreDown | Self::SaveConfig)
    }

    fn key(self) -> &'static str {
        match self {
            Self::PreDown => "PreDown",
            Self::SaveConfig => "SaveConfig",
            Self::SaveElsewhere => "SaveElsewhere",
            Self::PostDown => "PostDown",
        }
    }
}

#[cfg(test)]
mod tests;
