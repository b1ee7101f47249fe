//! The agent: it speaks to the coordinator, to relays and to programs of this machine, and decides.
//! It has no key of WireGuard's; what parses the network's words is here, and without rights.
//!
//! ```text
//!   coordinator ── control ──┐                        ┌── line ──► data plane, steward
//!   relays ─────── derp ─────┤                        │
//!   UDP, by the data plane ──┼──► core::Agent ────────┼── dns ───► programs that ask for names
//!   programs ───── local_api ┤      map, prefs        └── state ─► files
//!   clock ───────────────────┘      `── mesh: paths, endpoints, home
//! ```
//!
//! All of it is one thread: whatever is slow is a task of its own that tells [`core`] when it is
//! done. The loop is [`run`](mod@run); [`core`] has no sockets.

mod apply;
mod commands;
pub mod control;
mod core;
pub mod derp;
pub mod dns;
mod endpoints;
mod line;
pub mod local_api;
mod login;
mod mesh;
mod portmap;
mod programs;
mod relay_process;
pub mod roots;
mod run;
mod saved;
mod state_folder;
mod status;
mod throttle;
mod tka;
mod tunnel_pings;
mod why;

use std::{os::fd::OwnedFd, path::PathBuf};

use anyhow::Context;
use ipnet::IpNet;
use sys::Channel;
use tokio::{runtime::Builder, sync::mpsc};

use self::{local_api::Request, roots::Roots};

/// The folder of an agent's files.
#[derive(Debug)]
pub struct Folder {
    /// By which they are opened.
    pub path: PathBuf,
    /// By which users know it.
    pub display: PathBuf,
    /// What `path` leads through, if it does.
    pub open: Option<OwnedFd>,
}

/// What an agent is.
#[derive(Debug)]
pub struct Options {
    /// The member's name.
    pub name: String,
    /// Where it keeps files.
    pub folder: Folder,
    /// The authorities that TLS trusts.
    pub roots: Roots,
    /// The mark of its sockets; 0 for none.
    pub mark: u32,
    /// The user accepts addresses of these networks, in addition to tailnet addresses.
    pub address_ranges: Vec<IpNet>,
    /// Whether there is an interface, which the steward cares for.
    pub has_interface: bool,
    /// Whether it runs as a user that only agents have, and that may not change settings.
    pub has_own_user: bool,
}

/// Whom it speaks to on this machine.
#[derive(Debug)]
pub struct Lines {
    /// The data plane.
    pub plane: Channel,
    /// The steward, where there is one.
    pub steward: Option<Channel>,
    /// The process that relays for peers, where one can be had.
    pub relay_server: Option<Channel>,
    /// Where programs ask.
    pub clients: Clients,
}

/// Where programs ask.
#[derive(Debug)]
pub enum Clients {
    /// At a socket, as they ask tailscaled.
    #[cfg(feature = "local-api")]
    Socket(std::os::unix::net::UnixListener),
    /// The one program that the agent is a part of.
    Own(mpsc::Receiver<Request>),
}

/// Runs an agent until the data plane, or the program that it is a part of, is gone.
///
/// # Errors
/// Its files cannot be used.
pub fn run(options: Options, lines: Lines) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
    let ended = runtime.block_on(run::run(options, lines));
    // A name may be asked for that no server answers: nobody waits for that.
    runtime.shutdown_background();
    ended
}
