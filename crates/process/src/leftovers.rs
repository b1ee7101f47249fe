//! Undoes what a killed process left behind.

use anyhow::Context;
use host::{InterfaceLock, UndoLog, sockets::socket_path};
use sys::{SocketFile, netlink::Netlink};

/// What came of [`undo_leftovers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoversResult {
    /// There was nothing to do, or an interface of that name exists.
    Nothing,
    /// Another process brought the interface down meanwhile.
    ByAnother,
    /// What was left is undone.
    Undone,
}

/// Undoes what a killed process left of an interface, once its guardian is done.
///
/// # Errors
/// What is left cannot be read, or not all of it could be undone.
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
        // The guardian has done everything except remove the socket's file.
        (true, true) => LeftoversResult::ByAnother,
        (true, false) => return Ok(LeftoversResult::Nothing),
    };
    SocketFile::remove_stale(&socket_path(name)).with_context(|| name.to_owned())?;
    undo_log.undo(&netlink);
    anyhow::ensure!(undo_log.is_empty(), "{name}: not everything could be undone");
    Ok(swept)
}
