//! The steward of a member. It starts the agent, and applies the agent's desired state to the
//! host. It is this program, executed again before the sandbox, with all privileges and without
//! keys.
//!
//! ```text
//!   data plane ── Job, the agent's end of the line ──► steward ── AgentJob, that end, a socket ──► agent
//!        x ends ─────────────────────────────────────► undoes all ◄── ToSteward ── FromSteward ──►  |
//!                                                      starts another ◄──────────────────────────── x
//! ```

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use host::InterfaceLock;
use ipc::{self, FromSteward, PART, Reader, ToSteward};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sys::{
    Channel, SocketFile,
    netlink::{LinkChange, LinkFollower},
    poll::{readable, readable_until},
    process::{self, Signals},
};

use super::{
    agent::{self, AgentJob},
    host_state::{HostState, NameFiles},
    local_socket, make_folder,
    relay_server::RelaySupervisor,
};
use crate::{
    children::{self, Role, unprivileged_user},
    lifecycle::LogStyle,
    log_error::log_error,
};

/// The name of this program as a steward, which is its first argument.
pub(crate) const NAME: &str = "linerate-steward";
/// The runtime of an agent after which the next restart has the short pause again.
pub(super) const STEADY: Duration = Duration::from_secs(60);
/// The first and the longest pause before an agent is restarted.
pub(super) const PAUSE: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(10));
/// The longest wait for the end of a steward.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time in which an agent must exit.
const LEAVING: Duration = Duration::from_millis(200);

/// The input of a steward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// The member's name, which is that of the interface if present.
    pub name: String,
    /// The interface's index; 0 without an interface.
    pub index: u32,
    /// The state folder.
    pub state: PathBuf,
    /// The mark of packets that the agent sends, and the number of the routing table.
    pub mark: u32,
    /// Networks with addresses that the user accepts in addition to tailnet addresses.
    pub address_ranges: Vec<IpNet>,
}

/// The data plane's connection to its steward.
pub(super) struct StewardChannel(Channel);

impl StewardChannel {
    /// Starts a steward. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// The steward cannot be started, or refused the job.
    pub(super) fn start(
        job: &Job,
        agents_end: &Channel,
        log_style: LogStyle,
    ) -> anyhow::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        children::start(NAME, log_style, theirs)?;
        ours.send_with(&postcard::to_stdvec(job)?, agents_end.as_fd())?;
        let mut reply = [0; 512];
        match ours.receive(&mut reply)? {
            0 => bail!("it exited at once"),
            1 => Ok(Self(ours)),
            len => bail!("{}", String::from_utf8_lossy(&reply[1..len])),
        }
    }

    /// Requests the end of the steward, and waits for it.
    ///
    /// # Errors
    /// The wait takes too long.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.0.send(&[0])?;
        let [ended] = readable([self.0.as_fd()], Some(PATIENCE))?;
        ensure!(ended, "it does not exit: `linerate down` undoes the remaining changes");
        Ok(())
    }
}

/// Serves the data plane on standard input until that exits.
///
/// # Errors
/// Standard input is not a connection to a data plane, or the agent cannot be started.
pub(crate) fn run(log_style: LogStyle) -> anyhow::Result<()> {
    let _signals = Signals::block().context("signals")?;
    process::set_process_name(NAME).context("its name")?;
    let plane = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; PART];
    let (len, line) = plane.receive_with(&mut buffer)?;
    let job: Job = postcard::from_bytes(&buffer[..len]).context("invalid job")?;
    let line = line.context("the connection for the agent is missing in the job")?;
    let started = Serving::begin(job, line, log_style);
    match &started {
        Ok(_) => plane.send(&[1])?,
        Err(error) => plane.send(format!("\0{error:#}").as_bytes())?,
    }
    let mut serving = started?;
    let served = serving.run(&plane);
    serving.end();
    served
}

/// A running steward.
struct Serving {
    job: Job,
    /// The agent's end of the connection to the data plane, for each new agent.
    line: OwnedFd,
    listener: UnixListener,
    _file: SocketFile,
    host: Option<HostState>,
    /// The interface, if present.
    follow: Option<LinkFollower>,
    name_files: Option<NameFiles>,
    /// Locked until the changes of the host are undone, even if the data plane has exited.
    _lock: Option<InterfaceLock>,
    log_style: LogStyle,
    agent: Option<Agent>,
    relay_server: RelaySupervisor,
    pause: Duration,
}

/// A running agent.
struct Agent {
    process: Child,
    channel: Channel,
    reader: Reader,
    started: u64,
}

impl Agent {
    /// Sends the agent its job and its descriptors.
    fn begin(
        &self,
        job: &AgentJob,
        line: &OwnedFd,
        listener: &UnixListener,
        folder: &Path,
        relay_server: &Channel,
    ) -> anyhow::Result<()> {
        self.channel.send_with(&postcard::to_stdvec(job)?, line.as_fd())?;
        self.channel.send_with(&[0], listener.as_fd())?;
        // As a descriptor, because the agent's user may not be able to enter the folders above it.
        self.channel.send_with(&[0], fs::File::open(folder)?.as_fd())?;
        self.channel.send_with(&[0], relay_server.as_fd())?;
        Ok(self.channel.set_nonblocking()?)
    }

    /// Requests that the agent releases resources on other machines and exits. Waits briefly.
    fn request_exit(&self) {
        if !answer(&self.channel, &FromSteward::End) {
            return;
        }
        let until = sys::clock::boottime_nanos() + LEAVING.as_nanos() as u64;
        let mut last = [0; 1];
        loop {
            if !readable_until(self.channel.as_fd(), until).unwrap_or(false) {
                return;
            }
            // Further messages are ignored.
            if !matches!(self.channel.receive(&mut last), Ok(1..)) {
                return;
            }
        }
    }
}

impl Serving {
    fn begin(job: Job, line: OwnedFd, log_style: LogStyle) -> anyhow::Result<Self> {
        let (lock, host, follow, name_files) = match job.index {
            0 => (None, None, None, None),
            index => {
                let lock = InterfaceLock::join(&job.name)?;
                let host = HostState::open(&job)?;
                let follow = LinkFollower::open(index).context("netlink")?;
                (
                    Some(lock),
                    Some(host),
                    Some(follow),
                    Some(NameFiles::new().context("watch of the resolver configuration")?),
                )
            }
        };
        let socket = local_socket(&job.name);
        let folder = socket.parent().unwrap_or(Path::new("/"));
        open_folder(folder).with_context(|| folder.display().to_string())?;
        let (listener, file) =
            SocketFile::listen(&socket).with_context(|| socket.display().to_string())?;
        // Access is decided by the credentials of each client.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        let user = unprivileged_user(&job.name, Role::Relay);
        let relay_server = RelaySupervisor::new(user, job.mark, log_style).context("relay")?;
        let mut serving = Self {
            job,
            line,
            listener,
            _file: file,
            host,
            follow,
            name_files,
            _lock: lock,
            log_style,
            agent: None,
            relay_server,
            pause: PAUSE.0,
        };
        serving.start_agent().context("agent")?;
        Ok(serving)
    }

    /// Runs until the data plane exits.
    fn run(&mut self, plane: &Channel) -> anyhow::Result<()> {
        let mut buffer = vec![0; PART];
        loop {
            let Some(agent) = &self.agent else {
                let [ended] = readable([plane.as_fd()], Some(self.pause))?;
                if ended {
                    return Ok(());
                }
                log_error(self.start_agent().context("agent"));
                continue;
            };
            let follow = self.follow.as_ref().map_or(plane.as_fd(), AsFd::as_fd);
            let files = self.name_files.as_ref();
            let names = files.and_then(NameFiles::readable).unwrap_or(plane.as_fd());
            let relay = self.relay_server.channel().map_or(plane.as_fd(), AsFd::as_fd);
            let fds = [plane.as_fd(), agent.channel.as_fd(), follow, names, relay];
            let waits = [files.and_then(NameFiles::poll_timeout), self.relay_server.poll_timeout()];
            let wait = waits.into_iter().flatten().min();
            let [ended, has_message, changed, _, relay_ended] = readable(fds, wait)?;
            if ended {
                return Ok(());
            }
            if relay_ended {
                self.relay_server.handle_ended();
            }
            self.relay_server.handle_timeout();
            if has_message && !self.receive_from_agent(&mut buffer)
                || changed && !self.follow_interface()
                || !self.follow_names()
            {
                self.reap_agent();
            }
        }
    }

    /// Restores the routes and addresses that the interface lost while it was down, and notifies
    /// the agent. Returns false if the agent has exited.
    fn follow_interface(&mut self) -> bool {
        let Some(follow) = &mut self.follow else { return true };
        let mut is_up = false;
        loop {
            match follow.try_next() {
                Ok(Some(LinkChange::Up | LinkChange::Lost)) => is_up = true,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "monitoring of the interface stopped");
                    self.follow = None;
                    break;
                }
            }
        }
        let restored = self.host.as_mut().filter(|_| is_up).and_then(HostState::restore);
        let agent = self.agent.as_ref().zip(restored);
        agent.is_none_or(|(agent, done)| answer(&agent.channel, &done))
    }

    /// Restores an overwritten resolver configuration, and sends the host's name servers to the
    /// agent. Returns false if the agent has exited.
    fn follow_names(&mut self) -> bool {
        let Some(files) = &mut self.name_files else { return true };
        if let Err(error) = files.handle_events() {
            tracing::error!(%error, "monitoring of the resolver configuration stopped");
            self.name_files = None;
            return true;
        }
        if !files.take_due() {
            return true;
        }
        let followed = self.host.as_mut().and_then(HostState::follow_names);
        let Some((overwritten, done)) = followed else { return true };
        if overwritten {
            files.handle_overwritten();
        }
        self.agent.as_ref().is_none_or(|agent| answer(&agent.channel, &done))
    }

    fn start_agent(&mut self) -> anyhow::Result<()> {
        let (channel, theirs) = Channel::pair()?;
        let own = self.job.state.join(agent::FOLDER);
        make_folder(&own, 0o700).with_context(|| own.display().to_string())?;
        let user = unprivileged_user(&self.job.name, Role::Agent);
        if let Some(user) = user {
            change_owner_of_all(&own, user).with_context(|| own.display().to_string())?;
        }
        let process = children::start(agent::NAME, self.log_style, theirs)?;
        let started = sys::clock::boottime_nanos();
        let agent =
            self.agent.insert(Agent { process, channel, reader: Reader::default(), started });
        let job = AgentJob {
            name: self.job.name.clone(),
            folder: own.clone(),
            user,
            mark: self.job.mark,
            address_ranges: self.job.address_ranges.clone(),
            has_interface: self.job.index != 0,
        };
        let begun =
            agent.begin(&job, &self.line, &self.listener, &own, &self.relay_server.agents_end);
        if begun.is_err() {
            self.reap_agent();
        }
        begun
    }

    /// Receives and handles a message of the agent. Returns false if the agent has exited.
    fn receive_from_agent(&mut self, buffer: &mut [u8]) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        let len = match agent.channel.receive(buffer) {
            Ok(0) | Err(_) => return false,
            Ok(len) => len,
        };
        let ToSteward::Host(desired) = match agent.reader.handle_part(&buffer[..len]) {
            Ok(Some(message)) => message,
            Ok(None) => return true,
            Err(error) => {
                tracing::error!(%error, "the agent sent an invalid message");
                return false;
            }
        };
        self.relay_server.set_port(desired.relay_server);
        let done =
            self.host.as_mut().map_or_else(FromSteward::nothing, |host| host.apply(&desired));
        answer(&agent.channel, &done)
    }

    /// Handles the exit of the agent. The host does not change until the next agent sends its
    /// state.
    fn reap_agent(&mut self) {
        let Some(mut agent) = self.agent.take() else { return };
        let _ = agent.process.kill();
        let status = agent.process.wait();
        let runtime = Duration::from_nanos(sys::clock::boottime_nanos() - agent.started);
        self.pause = if runtime < STEADY { (self.pause * 2).min(PAUSE.1) } else { PAUSE.0 };
        match status {
            Ok(status) => tracing::error!(%status, "the agent exited; restarting it"),
            Err(error) => tracing::error!(%error, "the agent exited; restarting it"),
        }
    }

    fn end(mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.request_exit();
            let _ = agent.process.kill();
            let _ = agent.process.wait();
        }
        self.relay_server.stop();
        self.host.iter_mut().for_each(HostState::undo);
    }
}

/// Answers an agent without waiting. Returns false if the agent has exited or does not read.
fn answer(agent: &Channel, done: &FromSteward) -> bool {
    ipc::write(done, |part| agent.send(part)).is_ok()
}

/// Creates the folder of the sockets, and lets all users enter it. It may have been created for
/// root only, because of an undo log or the umask. Secrets in it are in private folders and files.
fn open_folder(folder: &Path) -> io::Result<()> {
    make_folder(folder, 0o755)?;
    if process::owns(folder) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Changes the owner of a folder and its files. They may belong to the user of a previous name.
fn change_owner_of_all(folder: &Path, user: u32) -> io::Result<()> {
    process::change_owner(folder, user)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            process::change_owner(&entry.path(), user)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_that_does_not_read_does_not_block_the_steward() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.set_nonblocking().unwrap();
        let done = FromSteward::nothing();
        assert!(answer(&ours, &done));
        assert!((0..1_000_000).any(|_| !answer(&ours, &done)));
        drop(theirs);
    }

    #[test]
    fn existing_private_socket_folder_is_opened_to_all_users() {
        let folder = std::env::temp_dir().join(format!("linerate-sockets-{}", std::process::id()));
        let mode = || fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        // As `linerate up` creates it for its undo log.
        make_folder(&folder.join("up"), 0o700).unwrap();
        assert_eq!(mode(), 0o700);
        open_folder(&folder).unwrap();
        let opened =
            (mode(), fs::metadata(folder.join("up")).unwrap().permissions().mode() & 0o777);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(opened, (0o755, 0o700));
    }
}
