//! `linerate server`: runs the coordinator, which is a separate program.

use std::{
    env,
    ffi::OsString,
    io::{self, ErrorKind},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Command,
};

use anyhow::anyhow;
use clap::Args;

const PROGRAM: &str = "linerate-server";

/// Arguments of `linerate server`.
#[derive(Args)]
pub(crate) struct Server {
    /// The arguments of `linerate-server`; `serve` by default.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl Server {
    /// Replaces this process by the server. Returns only after an error.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        if self.arguments.is_empty() {
            self.arguments.push("serve".into());
        }
        // Prefers the program in the same folder to the one in PATH.
        let in_same_folder = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let in_same_folder = in_same_folder.filter(|path| path.is_file());
        let program = in_same_folder.unwrap_or_else(|| PathBuf::from(PROGRAM));
        Err(failure(Command::new(program).args(self.arguments).exec()))
    }
}

fn failure(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is not installed: install the Debian package {PROGRAM}, or build it with `make server`"
        ),
        _ => anyhow::Error::from(error).context(PROGRAM),
    }
}
