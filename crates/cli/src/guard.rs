//! This program as a guardian, which `linerate up` starts.

use std::env;

use node::Guard;

use crate::log::{self, Log};

/// Runs it where this process was started as one.
pub(crate) fn run() -> Option<anyhow::Result<()>> {
    let guard = Guard::asked_for(env::args_os())?;
    Log::default().start();
    if guard.background {
        log::leave_terminal();
    }
    Some(guard.run())
}
