//! Commands of linerate that start a daemon or talk to one.

use crate::host::{Host, Outcome};
use crate::implementation::Implementation;

/// Runs `linerate ARGUMENTS`, with the rig's programs first in PATH. What it printed is in
/// `stderr`: a daemon in the background would hold a pipe open.
pub fn linerate(host: &Host, arguments: &str) -> Outcome {
    let program = Implementation::Linerate.path();
    let log = "/run/rig/linerate.log";
    let path = "PATH=/run/rig/bin:$PATH";
    let line = format!("{path} {} {arguments} </dev/null >{log} 2>&1", program.display());
    let mut outcome = host.attempt(line);
    outcome.stderr = host.read(log);
    outcome
}
