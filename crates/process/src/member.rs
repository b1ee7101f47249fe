//! A process that is a node of a tailnet, and the others that it has beside it.
//!
//! ```text
//!   this process      the data plane: the node key, the TUN, the UDP socket       no rights left
//!     |  `--- line --------------------------------------------------------.
//!     |                                                                      v
//!   steward           what is to be done to the host; starts the agent     agent
//!     root, no keys   `--- what the host is to have, and the files ------->  control, relays, paths,
//!     |                                                                      names: the network's words
//!   relay, where peers are relayed: a UDP socket, no keys, no rights          |
//!        `--------------- line: who may be relayed ---------------------------'
//! ```
//!
//! The agent is another user without rights. If it dies, the steward starts another one, and the
//! data plane has what it was told. If the data plane ends, so does the steward, which ends the
//! agent and undoes what it did to the host.

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

use ::member::plane::{self, Ends, KeyFile, OnIdentity, PlaneHandle};
use anyhow::{Context, anyhow};
use ipnet::IpNet;
use node::{Attachments, Node, tunnel_mtu};
use packet::Waker;
use sys::{Channel, atomic_file, netlink::Netlink, process};

use crate::{closing, lifecycle::LogStyle, log_error::log_error};
use steward::{Job, StewardChannel};

/// Where the states of machines are.
const STATES: &str = "/var/lib/linerate";
/// Where the sockets of Tailscale's local interface are.
const SOCKETS: &str = "/run/linerate";
/// The first of the marks and tables of members: by the interface's index, so that two differ.
const FIRST_MARK: u32 = 0x6c00_0000;

/// The file of [`Options::address_ranges`] in the folder of the state: a network per line.
const ADDRESS_RANGES: &str = "address-ranges";
/// More than the files of a new node have, in bytes.
const ROOM: usize = 32 << 10;

/// What of a machine's membership is known before it speaks to anybody.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder of its state.
    pub state: PathBuf,
    /// The user accepts addresses of these networks, in addition to tailnet addresses.
    /// If empty, the networks of the last start that named some.
    pub address_ranges: Vec<IpNet>,
}

/// The folder of the state of the member with this name, unless it is said.
pub fn state_folder(name: &str) -> PathBuf {
    let own = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state/linerate"));
    let folder = if process::is_root() { None } else { own() };
    folder.unwrap_or_else(|| STATES.into()).join(name)
}

/// The socket where a member answers as tailscaled does.
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

/// A member's parts of a process with an interface or a stack.
pub(crate) struct Member {
    name: String,
    /// The interface's index; `None` where there is no interface.
    index: Option<u32>,
    state: PathBuf,
    address_ranges: Vec<IpNet>,
    /// Until the data plane serves the agent.
    plane: Option<(Ends, Channel, KeyFile)>,
    /// The agent's end of its line, until the steward has it.
    agents_end: Option<Channel>,
    steward: Option<StewardChannel>,
    plane_handle: Option<PlaneHandle>,
    path_mtu: bool,
}

impl Member {
    /// Opens the state and the sockets. Returns what the data plane has attached as well.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub fn open(
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
        let (attached, ends) = plane::attach(wake);
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

    /// The mark of what the member's processes send, and the number of its routing table.
    pub fn mark(&self) -> u32 {
        self.index.map_or(0, |index| FIRST_MARK + index)
    }

    /// Sets the interface up. With all rights.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        node.search_paths(self.path_mtu);
        let Some(index) = self.index else { return plane::open_socket(node, &self.state) };
        let netlink = Netlink::open()?;
        let mtu = tunnel_mtu(&netlink, &[], 0)?;
        netlink.set_mtu(index, mtu).with_context(|| format!("MTU = {mtu}"))?;
        node.set_mtu(mtu);
        let mark = config::uapi::Change { fwmark: Some(self.mark()), ..Default::default() };
        node.apply(mark).context("mark")?;
        netlink.set_up(index).context("setting the interface up")?;
        plane::open_socket(node, &self.state)
    }

    /// Starts the steward, and it the agent. With all rights.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_steward(&mut self, log_style: LogStyle) -> anyhow::Result<()> {
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
    pub fn serve(&mut self, node: &Arc<Node>, on_identity: OnIdentity) -> anyhow::Result<()> {
        let Some((ends, line, keys)) = self.plane.take() else { return Ok(()) };
        self.plane_handle =
            Some(plane::start(node, ends, line, keys, on_identity).context("threads")?);
        Ok(())
    }

    /// Links, addresses or routes of this machine changed.
    pub fn network_changed(&self) {
        self.plane_handle.iter().for_each(PlaneHandle::network_changed);
    }

    /// The steward undoes what it did, and ends the agent. Returns when it has.
    pub fn end(&mut self) {
        let Some(steward) = self.steward.take() else { return };
        match steward.end() {
            // It was killed before, and `Health` has said so.
            Err(error) if is_broken_pipe(&error) => {
                tracing::warn!("the steward is gone: `linerate down` undoes what it leaves behind");
            }
            ended => log_error(ended.context("steward")),
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The networks in a file that may be absent.
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

/// Whether a node that is new can keep its keys. One that has joined runs without any room.
fn has_room(state: &Path) -> anyhow::Result<()> {
    let probe = state.join("room");
    let kept =
        atomic_file::replace(&probe, &" ".repeat(ROOM)).and_then(|()| atomic_file::remove(&probe));
    kept.with_context(|| format!("{}: a node keeps its keys there; make room", state.display()))
}

fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder)
}
