//! The process of a member's agent: drops privileges and runs the agent of the crate `member`.

use std::{
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use ipc::PART;
use ipnet::IpNet;
use member::agent::{self, roots::Roots};
use serde::{Deserialize, Serialize};
use sys::{
    Channel,
    process::{
        self, RetainedCapabilities, become_agent, retain_capabilities,
        sandbox::{AccessRules, CallGroups, Ports, confine_calls, confine_files},
    },
};

use crate::lifecycle::LogStyle;

/// The name of this program as an agent, which is its first argument.
pub(crate) const NAME: &str = "linerate-agent";
/// The agent's folder in the state folder of the member.
pub(super) const FOLDER: &str = "agent";

/// Readable files: certificates, host names and libraries.
const READ: [&str; 9] = [
    "/etc",
    "/lib",
    "/lib64",
    "/proc/self",
    "/proc/sys/vm/overcommit_memory",
    "/run/systemd/resolve",
    "/sys/devices/system/cpu",
    "/usr/lib",
    "/usr/share",
];
/// The limit of the agent's private memory, in bytes. A map of 50,000 peers needs far less. An
/// agent that runs out of memory is restarted, and the data plane continues meanwhile.
const MEMORY: u64 = 2 << 30;
/// The port of the DNS server.
const DNS: u16 = 53;

/// Its system calls: it connects to coordinators, relays and name servers, serves DNS, and
/// maintains its folder.
const CALLS: CallGroups = CallGroups {
    udp: true,
    streams: true,
    unlinks: true,
    tcp: true,
    unix: false,
    splice: false,
    syncs: false,
    filters_floods: false,
    agent: true,
};
const REFUSED: &str = "the kernel refused the sandbox";

/// The input of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentJob {
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The user ID to switch to, if any.
    pub user: Option<u32>,
    /// The mark of its sockets; 0 means no mark.
    pub mark: u32,
    pub address_ranges: Vec<IpNet>,
    pub has_interface: bool,
}

/// Runs the agent for the steward on standard input, until the steward exits.
///
/// # Errors
/// Standard input is not a connection to a steward, or the state cannot be read.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    process::set_process_name(NAME).context("its name")?;
    process::harden().context("core dumps")?;
    process::limit_memory(MEMORY).context("the limit of memory")?;
    let steward = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; PART];
    let (len, line) = steward.receive_with(&mut buffer)?;
    let job: AgentJob = postcard::from_bytes(&buffer[..len]).context("invalid job")?;
    let (len, listener) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward has exited");
    let (len, folder) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward has exited");
    let (len, relay_server) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward has exited");
    let folder = folder.context("the folder is missing in the job")?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let line = Channel::from(line.context("the connection is missing in the job")?);
    let listener = UnixListener::from(listener.context("the socket is missing in the job")?);
    drop(buffer);
    // Before the change of the user: files that the environment names may belong to root.
    let roots = Roots::from_environment();
    match job.user {
        Some(user) => become_agent(user).context("becoming the agent's user")?,
        None => retain_capabilities(RetainedCapabilities::default())?,
    }
    confine_files(&access(&opened)).context(REFUSED)?;
    confine_calls(CALLS).context(REFUSED)?;
    let options = agent::Options {
        name: job.name,
        folder: agent::Folder { path: opened, display: job.folder, open: Some(folder) },
        roots,
        mark: job.mark,
        address_ranges: job.address_ranges,
        has_interface: job.has_interface,
        has_own_user: job.user.is_some(),
    };
    agent::run(
        options,
        agent::Lines {
            plane: line,
            steward: Some(steward),
            relay_server: relay_server.map(Channel::from),
            clients: agent::Clients::Socket(listener),
        },
    )
}

fn access(folder: &Path) -> AccessRules {
    AccessRules {
        read: READ.iter().map(PathBuf::from).collect(),
        write: vec!["/dev/null".into()],
        own: vec![folder.to_owned()],
        listen: vec![DNS],
        connect: Ports::Any,
        ..AccessRules::default()
    }
}
