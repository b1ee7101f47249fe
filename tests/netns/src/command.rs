//! Commands that start a daemon or talk to one.

use crate::host::{Host, Outcome};
use crate::implementation::Implementation;

/// Runs `linerate ARGUMENTS`, with the rig's programs first in PATH. What it printed is in
/// `stderr`, as of [`logged`].
pub fn linerate(host: &Host, arguments: &str) -> Outcome {
    let program = Implementation::Linerate.path();
    logged(host, &format!("PATH=/run/rig/bin:$PATH {} {arguments}", program.display()))
}

/// Runs a command line without input. What it printed is in `stderr`: a daemon that it leaves in the
/// background would hold a pipe open.
pub fn logged(host: &Host, line: &str) -> Outcome {
    let log = "/run/rig/command.log";
    let mut outcome = host.attempt(format!("{line} </dev/null >{log} 2>&1"));
    outcome.stderr = host.read(log);
    outcome
}
