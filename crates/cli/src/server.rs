//! `linerate server`: the coordinator of a network, which is a program of its own.

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

/// Its arguments.
#[derive(Args)]
pub(crate) struct Server {
    /// What `linerate-server` is to do: `serve` if nothing is said.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl Server {
    /// Becomes the server. Returns only if it cannot.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        if self.arguments.is_empty() {
            self.arguments.push("serve".into());
        }
        // The one that was installed with this program; else wherever the shell would find it.
        let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let beside = beside.filter(|beside| beside.is_file());
        let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
        Err(failure(Command::new(program).args(self.arguments).exec()))
    }
}

fn failure(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is not installed: it is the Debian package {PROGRAM}, and `make server` builds it"
        ),
        _ => anyhow::Error::from(error).context(PROGRAM),
    }
}
