//! Commands that start a daemon or connect to one.

use crate::host::{Host, Outcome};
use crate::implementation::Implementation;

/// Runs `linerate ARGUMENTS`, with the rig's programs first in PATH. Its output is in `stderr`, as
/// with [`logged`].
pub fn linerate(host: &Host, arguments: &str) -> Outcome {
    let program = Implementation::Linerate.path();
    logged(host, &format!("PATH=/run/rig/bin:$PATH {} {arguments}", program.display()))
}

/// Runs a command line without input. Its output goes through a file to `stderr`: a daemon in the
/// background would keep a pipe open.
pub fn logged(host: &Host, line: &str) -> Outcome {
    let log = "/run/rig/command.log";
    let mut outcome = host.attempt(format!("{line} </dev/null >{log} 2>&1"));
    outcome.stderr = host.read(log);
    outcome
}
