//! This program as a guardian, which `linerate up` starts.

use process::Guard;

use crate::log::{self, Log};

/// Runs a guardian, which logs like the process that started it.
pub(crate) fn run(guard: Guard) -> anyhow::Result<()> {
    Log::of(guard.log_style).start();
    if guard.log_style.background {
        log::leave_terminal();
    }
    guard.run()
}
