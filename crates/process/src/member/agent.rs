//! The agent of a member, as a process: its rights, then the crate `member`.

use std::{
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
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
use tailnet::ipc::PART;

use crate::lifecycle::LogStyle;

/// The name of this program as an agent, its whole first argument.
pub(crate) const NAME: &str = "linerate-agent";
/// The agent's own folder, in that of the member's state.
pub(super) const FOLDER: &str = "agent";

/// Files that are read: certificates, names of hosts, libraries.
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
/// The limit of the agent's private memory, in bytes, as a last resort: a map of 50,000 peers needs far less. An
/// agent that ends for lack of memory is started again, and the data plane goes on meanwhile.
const MEMORY: u64 = 2 << 30;
/// The port of questions about names.
const DNS: u16 = 53;

/// What it does besides reading and writing: it speaks to coordinators, relays and resolvers,
/// listens where names are asked about, and keeps its folder.
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

/// What an agent needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentJob {
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The user to become; `None` stays.
    pub user: Option<u32>,
    /// The mark of its sockets; 0 for none.
    pub mark: u32,
    pub address_ranges: Vec<IpNet>,
    pub has_interface: bool,
}

/// Runs the agent for the steward on standard input, until that ends.
///
/// # Errors
/// Standard input is no connection to a steward, or the state cannot be read.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    process::set_process_name(NAME).context("its name")?;
    process::harden().context("core dumps")?;
    process::limit_memory(MEMORY).context("the limit of memory")?;
    let steward = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; PART];
    let (len, line) = steward.receive_with(&mut buffer)?;
    let job: AgentJob = postcard::from_bytes(&buffer[..len]).context("its job")?;
    let (len, listener) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward is gone");
    let (len, folder) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward is gone");
    let (len, relay_server) = steward.receive_with(&mut buffer)?;
    ensure!(len == 1, "the steward is gone");
    let folder = folder.context("there is no folder")?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let line = Channel::from(line.context("there is no line")?);
    let listener = UnixListener::from(listener.context("there is no socket")?);
    drop(buffer);
    // The files that the environment names may be root's.
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
