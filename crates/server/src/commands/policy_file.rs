//! `linerate-server policy`: parses, tests and compiles policies, locally or at the server.

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

use crate::{
    admin::policy_text::{parse, words},
    commands::{self, Common},
};

/// Manages the policy. A file named `-` is standard input.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyFile {
    /// Print the current policy.
    #[command(aliases = ["show", "view", "fetch"])]
    Get {
        /// Print an older policy, by its ID.
        #[arg(short, long)]
        identifier: Option<i64>,
    },
    /// List the stored policies with their times.
    History,
    /// Apply a policy, if its tests pass, and print how the reachability between nodes changes.
    #[command(aliases = ["put", "update"])]
    Set {
        /// The policy's file.
        #[arg(short, long)]
        file: PathBuf,
        /// Print the changes without applying the policy.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        parts: Parts,
    },
    /// Parse a policy, and print all errors in it.
    Check {
        #[command(flatten)]
        which: PolicyPath,
        /// Run the policy's tests with the users and nodes in this file.
        #[arg(long, value_name = "FILE")]
        nodes: Option<PathBuf>,
        /// Run the tests with the server's network, and print what the policy would change.
        #[arg(long, conflicts_with = "nodes")]
        server: bool,
        #[command(flatten)]
        parts: Parts,
    },
    /// Print the packet filter of each node.
    Filters {
        /// The policy's file.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        /// File with users, and nodes by name.
        #[arg(long, value_name = "FILE")]
        nodes: PathBuf,
        /// Print one JSON object with Tailscale's rules by the nodes' names.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        parts: Parts,
    },
}

/// Selects the parts of a policy that are used.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Ignore unsupported parts, and print them. A rule with an unsupported condition is
    /// ignored.
    #[arg(long)]
    ignore_unsupported: bool,
}

/// File of a policy.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct PolicyPath {
    /// The policy's file.
    path: Option<PathBuf>,
    /// The policy's file.
    #[arg(short, long)]
    file: Option<PathBuf>,
}

impl PolicyFile {
    /// Runs the command.
    ///
    /// # Errors
    /// The policy is invalid, or the server does not answer.
    pub(crate) async fn run(self, common: &Common) -> anyhow::Result<()> {
        match self {
            Self::Get { identifier } => commands::policy_in_force(common, identifier).await,
            Self::History => commands::policies(common).await,
            Self::Set { file, dry_run, parts } => {
                let text = text(&file)?;
                commands::submit_policy(common, &text, parts.ignore_unsupported, !dry_run).await
            }
            Self::Check { which, nodes, server, parts } => {
                let file = which.path.or(which.file).context("a policy is missing")?;
                if server {
                    let text = text(&file)?;
                    return commands::submit_policy(common, &text, parts.ignore_unsupported, false)
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
    anyhow!("{} is invalid:\n{}", file.display(), words(refusal))
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
