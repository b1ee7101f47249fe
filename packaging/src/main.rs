//! `manuals DIR`: writes the manual pages and completions of `linerate`, from the same
//! arguments as its `--help`.
//!
//! ```text
//!   cli::command() --> DIR/man/linerate.1, linerate-up.1, ...
//!                 `--> DIR/completions/linerate.bash, _linerate, linerate.fish
//! ```
#![forbid(unsafe_code)]

use std::{fs, path::Path};

use anyhow::Context;
use clap_complete::{Shell, generate_to};

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// What no argument tells, at the end of linerate(1).
const ENVIRONMENT_AND_FILES: &str = include_str!("environment-and-files.roff");

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: manuals DIR")?;
    write(Path::new(&folder))
}

/// Writes all of them into `folder`, which is made where it is not there.
fn write(folder: &Path) -> anyhow::Result<()> {
    let [man, completions] = ["man", "completions"].map(|name| folder.join(name));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    write_pages(&man)?;
    for shell in SHELLS {
        generate_to(shell, &mut cli::command(), "linerate", &completions)
            .with_context(|| format!("completions of {shell}"))?;
    }
    Ok(())
}

/// One page for the program and one for each of its subcommands.
fn write_pages(folder: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(cli::command(), folder).context("manual pages")?;
    let main = folder.join("linerate.1");
    let page = fs::read_to_string(&main).with_context(|| main.display().to_string())?;
    fs::write(&main, page + ENVIRONMENT_AND_FILES).with_context(|| main.display().to_string())
}

#[cfg(test)]
mod tests;
