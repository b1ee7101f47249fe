//! `manuals DIR`: writes the manual pages and completions of `linerate`, from the same
//! arguments as its `--help`, and the page of its files from docs/configuration.md.
//!
//! ```text
//!   cli::command() --> DIR/man/linerate.1, linerate-up.1, ...
//!                 `--> DIR/completions/linerate.bash, _linerate, linerate.fish
//!   configuration.md --> DIR/man/linerate.conf.5
//! ```
#![forbid(unsafe_code)]

mod roff;

use std::{fs, path::Path};

use anyhow::Context;
use clap_complete::{Shell, generate_to};

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// What no argument tells, at the end of linerate(1).
const ENVIRONMENT_AND_FILES: &str = include_str!("environment-and-files.roff");
/// What linerate.conf(5) tells.
const CONFIGURATION: &str = include_str!("../../docs/configuration.md");

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
    fs::write(&main, page + ENVIRONMENT_AND_FILES).with_context(|| main.display().to_string())?;
    let conf = folder.join("linerate.conf.5");
    fs::write(&conf, conf_page()).with_context(|| conf.display().to_string())
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
