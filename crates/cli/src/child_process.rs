//! Runs a helper process that another process of linerate has started: the guardian of `linerate up`,
//! the name resolver, the process that forwards a log to syslog, and the steward, the agent and the
//! relay server of a node of a tailnet.

use process::Child;

use crate::log::{Log, TerminalDetachment};

/// Runs the process. It logs like the process that started it.
pub(crate) fn run(child: Child) -> anyhow::Result<()> {
    Log::of(child.log_style).start();
    if child.log_style.background {
        TerminalDetachment::prepare().detach();
    }
    child.run()
}
