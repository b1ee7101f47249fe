//! Commands for a node of a tailnet. They send requests to the running node over its socket, which has
//! the API of tailscaled (LocalAPI).

mod flags;
mod health;
mod join;
mod queries;
mod status;
mod tka;

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use member::client::Client;
use process::member::{local_socket, system_socket};
use tokio::runtime::{Builder, Runtime};

use crate::client::{Outcome, in_this_namespace, only_name};

pub(crate) use self::{
    flags::Flags,
    health::add_node_health,
    join::{Join, is_auth_key_variable, take_key_argument},
    queries::{Netcheck, Whois, Why, ping},
    status::Status,
    tka::Tka,
};

/// The suffix of the name of a node's socket.
const SOCKET: &str = ".tailscaled.sock";

/// The node that a command is for.
#[derive(Args, Clone, Default)]
pub(crate) struct NodeSelector {
    /// The interface of the node; optional if this machine has only one node.
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// The same without an option, as in earlier versions.
    #[arg(hide = true, value_name = "IFACE", conflicts_with = "interface")]
    positional: Option<String>,
}

impl NodeSelector {
    /// The node with this interface, or the only node.
    pub(crate) fn new(interface: Option<String>) -> Self {
        Self { interface, positional: None }
    }

    /// The name of the node.
    ///
    /// # Errors
    /// No node runs, or several nodes run.
    pub(crate) fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = self.interface.as_ref().or(self.positional.as_ref()) {
            return Ok(name.clone());
        }
        let absent = "no node of a tailnet runs on this machine: see `linerate join --help`";
        only_name(&running(), "nodes", absent)
    }

    /// A client of the node.
    ///
    /// # Errors
    /// The node does not run.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let name = self.name()?;
        match sockets(&name).into_iter().find(|socket| answers(socket)) {
            Some(socket) => Ok(Client::new(socket)),
            None => bail!("{name}: no node of a tailnet with this interface runs"),
        }
    }
}

/// The sockets of a node with this name: the user's own, then root's, which operators may use, too.
fn sockets(name: &str) -> [PathBuf; 2] {
    [local_socket(name), system_socket(name)]
}

/// The names of the running nodes of this user, or else of root. Nodes in other network namespaces are
/// included only if all nodes are there.
fn running() -> Vec<String> {
    let name =
        |file: fs::DirEntry| Some(file.file_name().to_str()?.strip_suffix(SOCKET)?.to_owned());
    let names_in = |socket: PathBuf| -> Vec<String> {
        let entries = socket.parent().map(fs::read_dir).into_iter().flatten();
        let named = entries.flatten().flatten().filter_map(|file| Some((file.path(), name(file)?)));
        in_this_namespace(named)
    };
    let all = sockets("").map(names_in);
    all.into_iter().find(|names| !names.is_empty()).unwrap_or_default()
}

/// Whether a node of this user with this name runs.
pub(crate) fn is_running_node(name: &str) -> bool {
    answers(&local_socket(name))
}

/// Whether a process listens at a socket. A killed process leaves the file.
fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// The runtime in which commands wait for answers.
fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot wait for answers")
}

/// Logs a node out. It must join again.
pub(crate) fn logout(selector: &NodeSelector) -> anyhow::Result<()> {
    let client = selector.client()?;
    runtime()?.block_on(client.post("logout", None))?;
    Ok(())
}

/// Logs a node out, stops it, and removes its state, even after an error of the node.
pub(crate) fn leave(selector: &NodeSelector) -> anyhow::Result<Outcome> {
    let name = selector.name()?;
    // The node also leaves if its coordinator cannot be reached.
    if is_running_node(&name)
        && let Err(error) = logout(selector)
    {
        eprintln!("linerate: {name}: cannot log out at the coordinator: {error:#}");
    }
    let outcome = match crate::client::down_running(&name)? {
        Some(outcome) => outcome,
        None => {
            // A killed node may not have reverted its changes to this machine.
            process::undo_leftovers(&name)?;
            Outcome::Done
        }
    };
    let state = process::member::state_folder(&name);
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed.with_context(|| state.display().to_string())?,
    }
    Ok(outcome)
}

/// Changes settings of a running node.
pub(crate) fn set(name: Option<&str>, flags: &Flags) -> anyhow::Result<()> {
    let selector = NodeSelector::new(name.map(str::to_owned));
    let client = selector.client()?;
    let runtime = runtime()?;
    let prefs = flags.masked(&runtime, &client)?;
    runtime.block_on(client.patch("prefs", &prefs))?;
    Ok(())
}

/// Parses a duration: `90s`, `5m`, or a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let number: u64 = number.parse().map_err(|_| "must be like 90s or 5m".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(unit)))
}
