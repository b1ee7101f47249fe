//! `manuals DIR`: writes the manual pages and completions of `linerate` and `linerate-server` from their
//! command line definitions, and linerate.conf(5) from docs/configuration.md.
//!
//! ```text
//!   cli::command() --> DIR/linerate/man/linerate.1, linerate-up.1, ...
//!                 `--> DIR/linerate/completions/linerate.bash, _linerate, linerate.fish
//!   configuration.md --> DIR/linerate/man/linerate.conf.5
//!   server::program::command() --> DIR/linerate-server/man, DIR/linerate-server/completions
//! ```
#![forbid(unsafe_code)]

mod roff;

use std::{fs, path::Path};

use anyhow::Context;
use clap::Command;
use clap_complete::{Shell, generate_to};

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// The sections after the arguments in linerate(1).
const ENVIRONMENT_AND_FILES: &str = include_str!("environment-and-files.roff");
/// The sections after the arguments in linerate-server(1).
const FILES_OF_SERVER: &str = include_str!("files-of-server.roff");
/// The text of linerate.conf(5).
const CONFIGURATION: &str = include_str!("../../docs/configuration.md");

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: manuals DIR")?;
    write(Path::new(&folder))
}

/// Writes all files into `folder`, which is created if absent.
fn write(folder: &Path) -> anyhow::Result<()> {
    let ours = folder.join("linerate");
    write_program(&ours, "linerate", &cli::command(), ENVIRONMENT_AND_FILES)?;
    let conf = ours.join("man/linerate.conf.5");
    fs::write(&conf, conf_page()).with_context(|| conf.display().to_string())?;
    // The package of linerate-server has a page with this name, too.
    let servers_own = ours.join("man/linerate-server.1");
    fs::remove_file(&servers_own).with_context(|| servers_own.display().to_string())?;
    let servers = folder.join("linerate-server");
    write_program(&servers, "linerate-server", &server::program::command(), FILES_OF_SERVER)
}

/// Writes a page for a program, which ends with `more`, a page for each subcommand, and completions.
fn write_program(folder: &Path, name: &str, command: &Command, more: &str) -> anyhow::Result<()> {
    let [man, completions] = ["man", "completions"].map(|name| folder.join(name));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    clap_mangen::generate_to(command.clone(), &man).context("manual pages")?;
    let main = man.join(format!("{name}.1"));
    let page = fs::read_to_string(&main).with_context(|| main.display().to_string())?;
    fs::write(&main, page + more).with_context(|| main.display().to_string())?;
    for shell in SHELLS {
        generate_to(shell, &mut command.clone(), name, &completions)
            .with_context(|| format!("completions of {shell}"))?;
    }
    Ok(())
}

/// linerate.conf(5).
fn conf_page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ".TH linerate.conf 5 \"\" \"linerate {version}\"\n\
         .SH NAME\nlinerate.conf \\- the configuration of an interface or a proxy\n\
         .SH DESCRIPTION\n{}\
         .SH \"SEE ALSO\"\n\
         \\fBlinerate\\fR(1), \\fBlinerate\\-up\\fR(1), \\fBlinerate\\-proxy\\fR(1), \
         \\fBwg\\-quick\\fR(8)\n",
        roff::from_markdown(CONFIGURATION)
    )
}

#[cfg(test)]
mod tests;
