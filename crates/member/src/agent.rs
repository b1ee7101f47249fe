//! The agent: the process that exchanges messages with the coordinator, relays and programs, and
//! makes the decisions. It lacks the WireGuard key. It parses all input from the network, and it runs
//! without privileges.
//!
//! ```text
//!   coordinator ── control ──┐                        ┌── line ──► data plane, steward
//!   relays ─────── derp ─────┤                        │
//!   UDP, by the data plane ──┼──► core::Agent ────────┼── dns ───► programs that resolve names
//!   programs ───── local_api ┤      map, prefs        └── state_folder ─► files
//!   clock ───────────────────┘      `── mesh: paths, endpoints, home relay
//! ```
//!
//! The agent is one thread. Slow work runs in separate tasks that report to [`core`]. The loop is
//! [`run`](mod@run); [`core`] works without sockets.

mod applied_settings;
mod check_tasks;
mod clock;
pub mod control;
mod coordinator;
mod core;
pub mod derp;
pub mod dns;
mod host;
pub mod local_api;
mod machine;
mod nat64_lookup;
mod peer_paths;
mod portmap;
mod problems;
mod process_channel;
mod programs;
mod relay_process;
mod relays;
pub mod roots;
mod run;
mod saved;
mod state_folder;
mod this_node;
mod throttle;
mod tka;
mod tunnel_pings;
mod view;

use std::{os::fd::OwnedFd, path::PathBuf};

use anyhow::Context;
use ipnet::IpNet;
use sys::Channel;
use tokio::{runtime::Builder, sync::mpsc};

use self::{local_api::Request, roots::Roots};

/// The folder of an agent's files.
#[derive(Debug)]
pub struct Folder {
    /// The path by which the files are opened.
    pub path: PathBuf,
    /// The path that is shown to users.
    pub display: PathBuf,
    /// The folder's file descriptor, if `path` leads through one.
    pub open: Option<OwnedFd>,
}

/// The settings of an agent.
#[derive(Debug)]
pub struct Options {
    /// The name of the node on this machine.
    pub name: String,
    /// The folder of its files.
    pub folder: Folder,
    /// The certificate authorities that TLS trusts.
    pub roots: Roots,
    /// The mark of its sockets; 0 without a mark.
    pub mark: u32,
    /// Networks of addresses that the user accepts, in addition to tailnet addresses.
    pub address_ranges: Vec<IpNet>,
    /// Whether there is an interface, which the steward configures.
    pub has_interface: bool,
    /// Whether it runs as a separate user without permission to change settings.
    pub has_own_user: bool,
}

/// Connections to the other processes of this node and to programs.
#[derive(Debug)]
pub struct Lines {
    /// The data plane.
    pub plane: Channel,
    /// The steward, if there is one.
    pub steward: Option<Channel>,
    /// The process that relays for peers, if available.
    pub relay_server: Option<Channel>,
    /// The source of requests of programs.
    pub clients: Clients,
}

/// The source of requests of programs.
#[derive(Debug)]
pub enum Clients {
    /// A Unix socket, compatible with the one of tailscaled.
    #[cfg(feature = "local-api")]
    Socket(std::os::unix::net::UnixListener),
    /// The program that contains this agent.
    Own(mpsc::Receiver<Request>),
}

/// Runs an agent until the data plane ends, or the program that contains the agent.
///
/// # Errors
/// Its files cannot be used.
pub fn run(options: Options, lines: Lines) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
    let ended = runtime.block_on(run::run(options, lines));
    // Does not wait for look-ups of names that no server answers.
    runtime.shutdown_background();
    ended
}
