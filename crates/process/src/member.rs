//! A process that is a tailnet node, and its child processes.
//!
//! ```text
//!   this process      the data plane: node key, TUN, UDP socket; no privileges
//!     |  `--- channel ----------------------------------------------------.
//!     |                                                                    v
//!   steward           configures the host, starts the agent              agent
//!     root, no keys   `--- channel: desired host state, files to store --->  control server, relays,
//!     |                                                                      paths, names
//!   relay server      for peers, if enabled: a UDP socket, no keys         |
//!     no privileges   `--- channel: permitted clients ---------------------'
//! ```
//!
//! The agent runs as another user without privileges. If it dies, the steward starts another one,
//! and the data plane keeps its configuration. If the data plane exits, the steward stops the agent,
//! undoes its changes of the host and exits.

pub(crate) mod agent;
mod host_state;
pub(crate) mod relay_server;
pub(crate) mod steward;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use ::member::data_plane::{self, Ends, KeyFile, OnIdentity, PlaneHandle};
use anyhow::{Context, anyhow};
use ipnet::IpNet;
use node::{Attachments, Node, tunnel_mtu};
use packet::Waker;
use sys::{Channel, atomic_file, netlink::Netlink, process};

use crate::{closing, lifecycle::LogStyle, log_error::log_error};
use steward::{Job, StewardChannel};

/// Folder of the states of machines.
const STATES: &str = "/var/lib/linerate";
/// Folder of the sockets of Tailscale's local API.
const SOCKETS: &str = "/run/linerate";
/// The first number of marks and tables of members. The interface's index is added, so that they
/// differ.
const FIRST_MARK: u32 = 0x6c00_0000;

/// The file of [`Options::address_ranges`] in the state folder, with a network per line.
const ADDRESS_RANGES: &str = "address-ranges";
/// Upper bound of the size of a new node's files, in bytes.
const ROOM: usize = 32 << 10;

/// The options of a member at its start.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The state folder.
    pub state: PathBuf,
    /// Networks from which the user accepts addresses, in addition to tailnet addresses. If empty,
    /// the last networks that were given are used.
    pub address_ranges: Vec<IpNet>,
}

/// The default state folder of a member.
pub fn state_folder(name: &str) -> PathBuf {
    let own = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state/linerate"));
    let folder = if process::is_root() { None } else { own() };
    folder.unwrap_or_else(|| STATES.into()).join(name)
}

/// The socket on which a member answers like tailscaled.
pub fn local_socket(name: &str) -> PathBuf {
    let own =
        || std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("linerate"));
    let folder = if process::is_root() { None } else { own() };
    folder.map_or_else(|| system_socket(name), |folder| folder.join(socket_name(name)))
}

/// The socket of a member that runs as root.
pub fn system_socket(name: &str) -> PathBuf {
    Path::new(SOCKETS).join(socket_name(name))
}

fn socket_name(name: &str) -> String {
    format!("{name}.tailscaled.sock")
}

/// The member parts of a process with an interface or a stack.
pub(crate) struct Member {
    name: String,
    /// The interface's index; `None` without an interface.
    index: Option<u32>,
    state: PathBuf,
    address_ranges: Vec<IpNet>,
    /// `None` after the data plane has started to serve the agent.
    plane: Option<(Ends, Channel, KeyFile)>,
    /// The agent's end of the connection to the data plane; `None` after it was sent to the
    /// steward.
    agents_end: Option<Channel>,
    steward: Option<StewardChannel>,
    plane_handle: Option<PlaneHandle>,
    path_mtu: bool,
}

impl Member {
    /// Opens the state and the sockets. Also returns the attachments for the data plane.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub(crate) fn open(
        name: &str,
        index: Option<u32>,
        options: Options,
        wake: Waker,
    ) -> anyhow::Result<(Attachments, Self)> {
        let Options { state, mut address_ranges } = options;
        make_folder(&state, 0o700).with_context(|| state.display().to_string())?;
        let key = state.join("node.key");
        if !key.exists() {
            has_room(&state)?;
        }
        let is_locked = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let keys = closing::retry(name, is_locked, || KeyFile::open(&key));
        let keys = keys.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                anyhow!("{}: another process is this node", state.display())
            }
            _ => anyhow!(error).context(key.display().to_string()),
        })?;
        let ranges = state.join(ADDRESS_RANGES);
        if address_ranges.is_empty() {
            address_ranges = read_ranges(&ranges)?;
        } else {
            let texts = address_ranges.iter().map(|range| format!("{range}\n"));
            let stored = atomic_file::replace(&ranges, &texts.collect::<String>());
            stored.with_context(|| ranges.display().to_string())?;
        }
        let (ours, theirs) = Channel::pair().context("line")?;
        let (attached, ends) = data_plane::attach(wake);
        let member = Self {
            name: name.to_owned(),
            index,
            state,
            address_ranges,
            plane: Some((ends, ours, keys)),
            agents_end: Some(theirs),
            steward: None,
            plane_handle: None,
            path_mtu: true,
        };
        Ok((attached, member))
    }

    /// The mark of packets that the member's processes send, and the number of its routing table.
    pub(crate) fn mark(&self) -> u32 {
        self.index.map_or(0, |index| FIRST_MARK + index)
    }

    /// Sets the interface up. Requires all privileges.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        node.search_paths(self.path_mtu);
        let Some(index) = self.index else { return data_plane::open_socket(node, &self.state) };
        let netlink = Netlink::open()?;
        let mtu = tunnel_mtu(&netlink, &[], 0)?;
        netlink.set_mtu(index, mtu).with_context(|| format!("MTU = {mtu}"))?;
        node.set_mtu(mtu);
        let mark = config::uapi::Change { fwmark: Some(self.mark()), ..Default::default() };
        node.apply(mark).context("mark")?;
        netlink.set_up(index).context("setting the interface up")?;
        data_plane::open_socket(node, &self.state)
    }

    /// Starts the steward, which starts the agent. Requires all privileges.
    ///
    /// # Errors
    /// The steward cannot be started.
    pub(crate) fn start_steward(&mut self, log_style: LogStyle) -> anyhow::Result<()> {
        let Some(line) = self.agents_end.take() else { return Ok(()) };
        let job = Job {
            name: self.name.clone(),
            index: self.index.unwrap_or_default(),
            state: self.state.clone(),
            mark: self.mark(),
            address_ranges: self.address_ranges.clone(),
        };
        self.steward = Some(StewardChannel::start(&job, &line, log_style).context("steward")?);
        Ok(())
    }

    /// Serves the agent. Called by a confined thread.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn serve(
        &mut self,
        node: &Arc<Node>,
        on_identity: OnIdentity,
    ) -> anyhow::Result<()> {
        let Some((ends, line, keys)) = self.plane.take() else { return Ok(()) };
        self.plane_handle =
            Some(data_plane::start(node, ends, line, keys, on_identity).context("threads")?);
        Ok(())
    }

    /// Reports a change of links, addresses or routes of this machine.
    pub(crate) fn network_changed(&self) {
        self.plane_handle.iter().for_each(PlaneHandle::network_changed);
    }

    /// Waits until the steward has undone its changes and stopped the agent.
    pub(crate) fn end(&mut self) {
        let Some(steward) = self.steward.take() else { return };
        match steward.end() {
            // It was killed before, which `Health` has reported.
            Err(error) if is_broken_pipe(&error) => {
                tracing::warn!(
                    "the steward has exited: `linerate down` undoes the remaining changes"
                );
            }
            ended => log_error(ended.context("steward")),
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Reads the networks in a file, which may be absent.
fn read_ranges(path: &Path) -> anyhow::Result<Vec<IpNet>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| path.display().to_string())?,
    };
    let range = |(number, line): (usize, &str)| {
        line.parse().with_context(|| format!("{}:{}: {line}", path.display(), number + 1))
    };
    text.lines().enumerate().map(range).collect()
}

/// Checks that the disk has room for the keys of a new node; not for a node that has joined.
fn has_room(state: &Path) -> anyhow::Result<()> {
    let probe = state.join("room");
    let stored =
        atomic_file::replace(&probe, &" ".repeat(ROOM)).and_then(|()| atomic_file::remove(&probe));
    stored.with_context(|| {
        format!("{}: not enough disk space for the keys of a node", state.display())
    })
}

fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder)
}
