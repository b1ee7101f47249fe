//! The process of the peer relay: it binds its socket, drops all privileges, and relays datagrams
//! (crate `member`). It never has a WireGuard key.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use anyhow::Context;
use ipc::PART;
use member::relay_server::{Bound, report_failure};
use serde::{Deserialize, Serialize};
use sys::{
    Channel,
    process::{
        self, RetainedCapabilities, become_user, retain_capabilities,
        sandbox::{AccessRules, CallGroups, confine_calls, confine_files},
    },
};

use super::steward::{PAUSE, STEADY};
use crate::{children, lifecycle::LogStyle};

/// The name of this program as a relay, which is its first argument.
pub(crate) const NAME: &str = "linerate-relay";
/// Files that the allocator reads, also when a thread starts.
const READ: [&str; 3] = ["/proc/self", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu"];
const REFUSED: &str = "the kernel refused the sandbox";

/// The input of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RelayJob {
    /// The UDP port; 0 means any.
    port: u16,
    /// The mark of sent datagrams; 0 means no mark.
    mark: u32,
    /// The user ID to switch to, if any.
    user: Option<u32>,
}

/// Relays until the steward on standard input exits.
///
/// # Errors
/// Standard input is not a connection to a steward, or the kernel refuses the socket.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    process::set_process_name(NAME).context("its name")?;
    process::harden().context("core dumps")?;
    let steward = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; PART];
    let (len, line) = steward.receive_with(&mut buffer)?;
    let job: RelayJob = postcard::from_bytes(&buffer[..len]).context("invalid job")?;
    let line = Channel::from(line.context("the connection is missing in the job")?);
    let bound = Bound::new(job.port, job.mark).inspect_err(|error| report_failure(&line, error))?;
    match job.user {
        Some(user) => become_user(user).context("becoming the relay's user")?,
        None => retain_capabilities(RetainedCapabilities::default())?,
    }
    let read = READ.iter().map(PathBuf::from).collect();
    let write = vec![Path::new("/dev/null").to_owned()];
    confine_files(&AccessRules { read, write, ..AccessRules::default() }).context(REFUSED)?;
    confine_calls(CallGroups::default()).context(REFUSED)?;
    bound.serve(line, &steward)
}

/// Runs the relay of a steward as the agent requests.
pub(super) struct RelaySupervisor {
    /// The agent's end of the connection between agent and relay, for each new agent.
    pub agents_end: Channel,
    own_end: Channel,
    user: Option<u32>,
    mark: u32,
    log_style: LogStyle,
    port: Option<u16>,
    running: Option<Running>,
    pause: Duration,
    /// Time of the next start.
    due: Option<Duration>,
}

/// A running relay process.
struct Running {
    process: Child,
    channel: Channel,
    started: Duration,
}

impl RelaySupervisor {
    /// A supervisor without a running relay.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(user: Option<u32>, mark: u32, log_style: LogStyle) -> io::Result<Self> {
        let (agents_end, own_end) = Channel::pair()?;
        let (port, running, pause, due) = (None, None, PAUSE.0, None);
        Ok(Self { agents_end, own_end, user, mark, log_style, port, running, pause, due })
    }

    /// Starts the relay on this port, or stops it if `None`.
    pub(super) fn set_port(&mut self, port: Option<u16>) {
        if self.port == port {
            return;
        }
        self.stop();
        (self.port, self.pause) = (port, PAUSE.0);
        self.due = port.map(|_| now());
        self.handle_timeout();
    }

    /// The channel that becomes readable when the relay has exited.
    pub(super) fn channel(&self) -> Option<&Channel> {
        self.running.as_ref().map(|running| &running.channel)
    }

    /// The time until [`Self::handle_timeout`] must be called.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_sub(now()))
    }

    /// Starts the relay if that is due.
    pub(super) fn handle_timeout(&mut self) {
        if self.due.is_none_or(|due| now() < due) {
            return;
        }
        self.due = None;
        let Some(port) = self.port else { return };
        match self.start(port) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "relay");
                self.schedule_restart();
            }
        }
    }

    /// Handles an unexpected exit: schedules a restart.
    pub(super) fn handle_ended(&mut self) {
        let Some(running) = &self.running else { return };
        if now().saturating_sub(running.started) >= STEADY {
            self.pause = PAUSE.0;
        }
        tracing::error!("the peer relay exited; restarting it");
        self.stop();
        self.schedule_restart();
    }

    fn schedule_restart(&mut self) {
        self.due = Some(now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    fn start(&self, port: u16) -> anyhow::Result<Running> {
        let (channel, theirs) = Channel::pair()?;
        let process = children::start(NAME, self.log_style, theirs)?;
        let running = Running { process, channel, started: now() };
        let job = RelayJob { port, mark: self.mark, user: self.user };
        running.channel.send_with(&postcard::to_stdvec(&job)?, self.own_end.as_fd())?;
        Ok(running)
    }

    /// Stops the relay and waits for its exit. Its port is free afterwards.
    pub(super) fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.process.kill();
            let _ = running.process.wait();
        }
    }
}

fn now() -> Duration {
    sys::clock::boottime()
}
