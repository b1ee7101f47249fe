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
        #[command(flatten)]
        parts: Parts,
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
        #[command(flatten)]
        parts: Parts,
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
        #[command(flatten)]
        parts: Parts,
    },
}

/// The parts of a policy that are used.
#[derive(Args, Clone, Copy, Debug)]
pub struct Parts {
    /// Leave out unsupported parts, and print them. A rule with an unsupported condition is left out.
    #[arg(long)]
    ignore_unsupported: bool,
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
            Self::Set { file, dry_run, parts } => {
                let text = text(&file)?;
                commands::policy_says(common, &text, parts.ignore_unsupported, !dry_run).await
            }
            Self::Check { which, nodes, server, parts } => {
                let file = which.path.or(which.file).context("a policy is missing")?;
                if server {
                    let text = text(&file)?;
                    return commands::policy_says(common, &text, parts.ignore_unsupported, false)
                        .await;
                }
                let policy = read(&file, parts)?;
                let mut warnings = Vec::new();
                if let Some(nodes) = nodes {
                    let nodes = read_nodes(&nodes)?;
                    policy.run_tests(&nodes).map_err(|refusal| refused(&file, &refusal))?;
                    warnings = policy.warnings(&nodes);
                }
                let lines = commands::remarks(policy.left_out(), &warnings);
                commands::print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
            }
            Self::Filters { policy: file, nodes, json, parts } => {
                let policy = read(&file, parts)?;
                let nodes = read_nodes(&nodes)?;
                policy.run_tests(&nodes).map_err(|refusal| refused(&file, &refusal))?;
                commands::print(&filters(&policy, &nodes, json)?)
            }
        }
    }
}

/// Reads a policy, with or without its unsupported parts.
///
/// # Errors
/// All that is wrong with it.
pub fn parse(text: &str, ignore_unsupported: bool) -> Result<Policy, Refusal> {
    if ignore_unsupported { Policy::parse_supported(text) } else { Policy::parse(text) }
}

/// A refusal, with a hint about unsupported parts.
pub fn words(refusal: &Refusal) -> String {
    let is_supported = refusal.faults.iter().any(|fault| !fault.reason.is_unsupported());
    let hint =
        "\n`--ignore-unsupported` leaves out these parts, with the rules that depend on them";
    format!("{refusal}{}", if is_supported { "" } else { hint })
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

fn read(file: &Path, parts: Parts) -> anyhow::Result<Policy> {
    let read = parse(&text(file)?, parts.ignore_unsupported);
    read.map_err(|refusal| refused(file, &refusal))
}

fn refused(file: &Path, refusal: &Refusal) -> anyhow::Error {
    anyhow!("{} is refused:\n{}", file.display(), words(refusal))
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
