//! PreUp, PostUp, PreDown and PostDown.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use sys::process::unmask;

/// Runs hooks in order; `%i` is the interface's name.
///
/// # Errors
/// One failed; those behind it did not run.
pub fn run(key: &str, hooks: &[String], interface: &str) -> anyhow::Result<()> {
    for hook in hooks {
        let command = hook.replace("%i", interface);
        tracing::info!("{key}: {command}");
        let what = || format!("{key} = {hook}");
        let status = match shell("bash", &command).status() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                shell("sh", &command).status()
            }
            status => status,
        };
        let status = status.with_context(what)?;
        if !status.success() {
            bail!("{}: {status}", what());
        }
    }
    Ok(())
}

fn shell(shell: &str, command: &str) -> Command {
    let mut process = Command::new(shell);
    process.arg("-c").arg(command).stdin(Stdio::null());
    unmask(&mut process);
    process
}
