//! Undoes the changes of a killed process.

use anyhow::Context;
use host::{InterfaceLock, UndoLog, sockets::socket_path};
use sys::{SocketFile, netlink::Netlink};

/// The result of [`undo_leftovers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoversResult {
    /// Nothing was left, or an interface of that name exists.
    Nothing,
    /// Another process brought the interface down in the meantime.
    ByAnother,
    /// The remaining changes were undone.
    Undone,
}

/// Undoes the changes that a killed process made for an interface, after its guardian has exited.
///
/// # Errors
/// The undo log cannot be read, or not all changes could be undone.
pub fn undo_leftovers(name: &str) -> anyhow::Result<LeftoversResult> {
    if !InterfaceLock::has_lock_file(name) && UndoLog::open(name)?.is_empty() {
        return Ok(LeftoversResult::Nothing);
    }
    let Some(lock) = InterfaceLock::wait(name)? else { return Ok(LeftoversResult::Nothing) };
    let (mut undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
    if netlink.link_by_name(name)?.is_some() {
        return Ok(LeftoversResult::Nothing);
    }
    let swept = match (undo_log.is_empty(), lock.was_contended()) {
        (false, _) => LeftoversResult::Undone,
        // The guardian has undone everything, except that it did not remove the socket file.
        (true, true) => LeftoversResult::ByAnother,
        (true, false) => return Ok(LeftoversResult::Nothing),
    };
    SocketFile::remove_stale(&socket_path(name)).with_context(|| name.to_owned())?;
    undo_log.undo(&netlink);
    anyhow::ensure!(undo_log.is_empty(), "{name}: not everything could be undone");
    Ok(swept)
}
