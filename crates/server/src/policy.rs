//! `linerate-server policy`: a policy's text is read, tested and compiled without a server.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use ::policy::{Nodes, Policy, Refusal, to_json};
use anyhow::{Context, anyhow};
use clap::Subcommand;

/// Commands for a policy in a file; `-` is standard input.
#[derive(Debug, Subcommand)]
pub enum PolicyFile {
    /// Read a policy, and say all that is wrong with it.
    Check {
        /// The policy.
        file: PathBuf,
        /// Run the policy's tests with these users and nodes.
        #[arg(long, value_name = "FILE")]
        nodes: Option<PathBuf>,
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

impl PolicyFile {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Check { file, nodes } => {
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
                print(&policy, &nodes, json).context("cannot print the filters")
            }
        }
    }
}

fn print(policy: &Policy, nodes: &Nodes, json: bool) -> io::Result<()> {
    let compiled = policy.compile(nodes);
    let mut out = io::stdout().lock();
    let named = nodes.nodes.iter().enumerate();
    let filters = named.map(|(place, node)| (&node.name, to_json(&compiled.filter(place))));
    if json {
        let filters: BTreeMap<_, _> = filters.collect();
        serde_json::to_writer_pretty(&mut out, &filters)?;
        return writeln!(out);
    }
    for (name, rules) in filters {
        writeln!(out, "{name}")?;
        for rule in rules.as_array().into_iter().flatten() {
            writeln!(out, "  {rule}")?;
        }
    }
    Ok(())
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
