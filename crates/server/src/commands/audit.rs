//! Commands that show, export and verify the audit log.
//!
//! ```text
//!   exported file ──► its own chain ──► later entries of the store ──► head of the server
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use coordinator::{
    AuditHash, audit_line, check_chain,
    object::{AuditEntry, AuditId, Kind},
    parse_audit_line,
};
use hyper::Method;
use sys::atomic_file;

use super::{
    Common,
    client::{Client, query},
    print, table,
};
use crate::commands::import;

/// Arguments of `audit`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Audit {
    /// Maximum number of entries.
    #[arg(short, long, default_value = "100")]
    limit: usize,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Export all entries, the oldest first, as one JSON object per line.
    Export {
        /// The file. By default, standard output.
        file: Option<PathBuf>,
    },
    /// Verify that no entry of an exported file was changed, removed or inserted.
    Verify {
        /// The file, or - for standard input.
        file: PathBuf,
        /// Verify the file alone, without the server. Entries that were cut off at its end
        /// are then not detected.
        #[arg(long)]
        offline: bool,
    },
}

/// Runs `audit`.
///
/// # Errors
/// The server does not answer, or the entries do not match the chain.
pub(crate) async fn audit(common: &Common, arguments: Audit) -> anyhow::Result<()> {
    match arguments.command {
        None => {
            let path = query("audit", &[("limit", Some(arguments.limit.to_string()))]);
            Client::new(common)?.print_answer(Method::GET, &path, None, table::audit).await
        }
        Some(Command::Export { file }) => export(common, file.as_deref()).await,
        Some(Command::Verify { file, offline }) => verify(common, &file, offline).await,
    }
}

async fn export(common: &Common, file: Option<&Path>) -> anyhow::Result<()> {
    let entries = stored_entries(common).await?;
    let text: String = entries.iter().map(|entry| audit_line(entry) + "\n").collect();
    let Some(file) = file else {
        return print(&text);
    };
    atomic_file::replace(file, &text).with_context(|| file.display().to_string())?;
    print(&format!("exported {} entries\n", entries.len()))
}

/// All entries in the store.
async fn stored_entries(common: &Common) -> anyhow::Result<Vec<AuditEntry>> {
    let objects = import::everything(common).await?;
    let entries = objects.into_iter().filter(|object| object.kind == Kind::AuditEntry);
    let read = |body: String| serde_json::from_str(&body).context("an entry of the store");
    entries.filter_map(|object| object.body).map(read).collect()
}

async fn verify(common: &Common, file: &Path, offline: bool) -> anyhow::Result<()> {
    let name = || file.display().to_string();
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin())?,
        false => fs::read_to_string(file).with_context(name)?,
    };
    let mut entries = read(&text).with_context(name)?;
    let Some((last, hash)) = check_chain(&entries).with_context(name)? else {
        bail!("{}: it contains no entries", file.display());
    };
    let unchained = entries.iter().take_while(|entry| entry.previous.is_none()).count();
    if !offline {
        let head = head(common).await?;
        let is_behind = |entry: &AuditEntry| entry.id > last && entry.id <= head.0;
        entries.extend(stored_entries(common).await?.into_iter().filter(is_behind));
        let reached = check_chain(&entries).context("the store, after the end of the file")?;
        if reached != Some(head) {
            bail!(
                "the head of the server is entry {} with {}, and the file does not lead to it: \
                 the store or the file was changed",
                head.0,
                head.1
            );
        }
    }
    let mut words = format!("valid: entry {last} has {hash}\n");
    if unchained > 0 {
        words += &format!("{unchained} entries are older than the chain and are not verified\n");
    }
    print(&words)
}

fn read(text: &str) -> anyhow::Result<Vec<AuditEntry>> {
    let line = |(number, line): (usize, &str)| {
        parse_audit_line(line).with_context(|| format!("line {}", number + 1))
    };
    text.lines().enumerate().map(line).collect()
}

/// The last entry of the running server.
async fn head(common: &Common) -> anyhow::Result<(AuditId, AuditHash)> {
    let answer = Client::new(common)?.send(Method::GET, "audit/head", None).await?;
    let id = answer["id"].as_i64().context("the server's answer")?;
    let hash = answer["hash"].as_str().and_then(|text| text.parse().ok());
    Ok((AuditId(id), hash.context("the server's answer")?))
}
