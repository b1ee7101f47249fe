//! This program as one of the processes that others start: the guardian of `linerate up`, the
//! resolver of names, the process that forwards a log to syslog, and the steward, the agent and the
//! relay of a node of a tailnet.

use process::Child;

use crate::log::{Log, TerminalDetachment};

/// Runs it. It logs like the process that started it.
pub(crate) fn run(child: Child) -> anyhow::Result<()> {
    Log::of(child.log_style).start();
    if child.log_style.background {
        TerminalDetachment::prepare().detach();
    }
    child.run()
}
