//! What a killed process left of an interface.

use anyhow::Context;
use host::{InterfaceLock, UndoLog, sockets::socket_path};
use sys::{SocketFile, netlink::Netlink};

/// What came of [`sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// There was nothing to do, or there is an interface of that name.
    Nothing,
    /// Another process brought it down meanwhile, and did all.
    ByAnother,
    /// What was left is undone.
    Undone,
}

/// Undoes what a killed process left behind, when its guardian is done.
///
/// # Errors
/// It cannot be told.
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
        // The guardian has done all but remove the socket's file.
        (true, true) => Swept::ByAnother,
        (true, false) => return Ok(Swept::Nothing),
    };
    SocketFile::make_room(&socket_path(name)).with_context(|| name.to_owned())?;
    undo_log.undo(&netlink);
    anyhow::ensure!(undo_log.is_empty(), "{name}: not everything could be undone");
    Ok(swept)
}
