//! The agent.

pub mod control;
pub mod dns;
mod line;
pub mod local_api;
mod state;

use std::{os::unix::net::UnixListener, path::PathBuf};

use sys::Channel;

pub struct Options {
    pub name: String,
    pub folder: PathBuf,
    pub mark: u32,
    pub has_interface: bool,
}

pub struct Lines {
    pub plane: Channel,
    pub steward: Option<Channel>,
    pub clients: Option<UnixListener>,
}

pub fn run(_: Options, _: Lines) -> anyhow::Result<()> {
    Ok(())
}
