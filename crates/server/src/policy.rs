//! `linerate-server policy`: a policy's text is read, tested and compiled here, or by the server.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use ::policy::{Nodes, Policy, Refusal, to_json};
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};

use crate::commands::{self, Common};

/// Commands for the policy; a file that is `-` is standard input.
#[derive(Debug, Subcommand)]
pub enum PolicyFile {
    /// Print the policy in force.
    #[command(aliases = ["show", "view", "fetch"])]
    Get {
        /// An older one, by its number.
        #[arg(short, long)]
        identifier: Option<i64>,
    },
    /// Show when policies were saved, which are kept.
    History,
    /// Put a policy in force, if its tests pass, and print who reaches whom that did not, or does
    /// not any more.
    #[command(aliases = ["put", "update"])]
    Set {
        /// The policy.
        #[arg(short, long)]
        file: PathBuf,
        /// Print the difference, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Read a policy, and say all that is wrong with it.
    Check {
        #[command(flatten)]
        which: Which,
        /// Run the policy's tests with these users and nodes.
        #[arg(long, value_name = "FILE")]
        nodes: Option<PathBuf>,
        /// Run them in the server's network, and print what the policy would change.
        #[arg(long, conflicts_with = "nodes")]
        server: bool,
    },
    /// Print the filter of each node.
    Filters {
        /// The policy.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        /// Users, and nodes by name.
        #[arg(long, value_name = "FILE")]
        nodes: PathBuf,
        /// As one object in JSON, Tailscale's rules by the node's name.
        #[arg(long)]
        json: bool,
    },
}

/// A policy's file.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// The policy.
    path: Option<PathBuf>,
    /// The same.
    #[arg(short, long)]
    file: Option<PathBuf>,
}

impl PolicyFile {
    /// Runs the command.
    ///
    /// # Errors
    /// The policy cannot be read or is refused; the server does not answer.
    pub async fn run(self, common: &Common) -> anyhow::Result<()> {
        match self {
            Self::Get { identifier } => commands::policy_in_force(common, identifier).await,
            Self::History => commands::policies(common).await,
            Self::Set { file, dry_run } => {
                commands::policy_says(common, &text(&file)?, !dry_run).await
            }
            Self::Check { which, nodes, server } => {
                let file = which.path.or(which.file).context("a policy is missing")?;
                if server {
                    return commands::policy_says(common, &text(&file)?, false).await;
                }
                let policy = read(&file)?;
                if let Some(nodes) = nodes {
                    let tested = policy.run_tests(&read_nodes(&nodes)?);
                    tested.map_err(|refusal| refused(&file, &refusal))?;
                }
                Ok(())
            }
            Self::Filters { policy: file, nodes, json } => {
                let policy = read(&file)?;
                let nodes = read_nodes(&nodes)?;
                policy.run_tests(&nodes).map_err(|refusal| refused(&file, &refusal))?;
                commands::print(&filters(&policy, &nodes, json)?)
            }
        }
    }
}

fn filters(policy: &Policy, nodes: &Nodes, json: bool) -> anyhow::Result<String> {
    let compiled = policy.compile(nodes);
    let named = nodes.nodes.iter().enumerate();
    let filters = named.map(|(place, node)| (&node.name, to_json(&compiled.filter(place))));
    if json {
        let filters: BTreeMap<_, _> = filters.collect();
        return Ok(serde_json::to_string_pretty(&filters)? + "\n");
    }
    let mut text = String::new();
    for (name, rules) in filters {
        writeln!(text, "{name}")?;
        for rule in rules.as_array().into_iter().flatten() {
            writeln!(text, "  {rule}")?;
        }
    }
    Ok(text)
}

fn read(file: &Path) -> anyhow::Result<Policy> {
    Policy::parse(&text(file)?).map_err(|refusal| refused(file, &refusal))
}

fn refused(file: &Path, refusal: &Refusal) -> anyhow::Error {
    anyhow!("{} is refused:\n{refusal}", file.display())
}

fn read_nodes(file: &Path) -> anyhow::Result<Nodes> {
    Nodes::from_json(&text(file)?).with_context(|| format!("cannot read {}", file.display()))
}

fn text(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
