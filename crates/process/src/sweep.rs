//! Undoes what a killed process left behind.

use anyhow::Context;
use host::{InterfaceLock, UndoLog, sockets::socket_path};
use sys::{SocketFile, netlink::Netlink};

/// What came of [`sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
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
pub fn sweep(name: &str) -> anyhow::Result<Swept> {
    if !InterfaceLock::is_known(name) && UndoLog::open(name)?.is_empty() {
        return Ok(Swept::Nothing);
    }
    let Some(lock) = InterfaceLock::wait(name)? else { return Ok(Swept::Nothing) };
    let (mut undo_log, netlink) = (UndoLog::open(name)?, Netlink::open()?);
    if netlink.link_by_name(name)?.is_some() {
        return Ok(Swept::Nothing);
    }
    let swept = match (undo_log.is_empty(), lock.was_waited_for()) {
        (false, _) => Swept::Undone,
        // The guardian has done everything except remove the socket's file.
        (true, true) => Swept::ByAnother,
        (true, false) => return Ok(Swept::Nothing),
    };
    SocketFile::remove_stale(&socket_path(name)).with_context(|| name.to_owned())?;
    undo_log.undo(&netlink);
    anyhow::ensure!(undo_log.is_empty(), "{name}: not everything could be undone");
    Ok(swept)
}
