//! The port of the UDP socket, which is stored for the next start.

use std::{fs, path::Path};

use anyhow::Context;
use config::uapi::Change;
use node::Node;
use sys::atomic_file;

/// The file in the folder of a member's state.
const FILE: &str = "port";

/// Opens the UDP socket at the port of the last start, which peers and NATs still expect; at
/// another one if that is in use. `state` is the folder of the member's state.
///
/// # Errors
/// No port is available.
pub fn open_socket(node: &Node, state: &Path) -> anyhow::Result<()> {
    let file = state.join(FILE);
    let listen_at = |port| {
        let change = Change { listen_port: Some(port), ..Change::default() };
        node.apply(change).context("UDP socket")?;
        node.link_up().context("UDP socket")
    };
    let saved = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if saved.is_none_or(|port: u16| listen_at(port).is_err()) {
        listen_at(0)?;
    }
    let port = node.listen_port();
    if saved != Some(port)
        && let Err(error) = atomic_file::replace(&file, &format!("{port}\n"))
    {
        tracing::error!(%error, "the port could not be saved");
    }
    Ok(())
}
