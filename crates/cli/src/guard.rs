//! This program as a guardian, which `linerate up` starts.

use node::Guard;

use crate::log::{self, Log};

/// Runs it; it logs as who started it.
pub(crate) fn run(guard: Guard) -> anyhow::Result<()> {
    Log::of(guard.voice).start();
    if guard.voice.background {
        log::leave_terminal();
    }
    guard.run()
}
