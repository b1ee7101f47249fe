//! The audit: shown, written out, and verified.
//!
//! ```text
//!   a file that was written out ──► its own chain ──► entries of the store behind it ──► head of the
//!                                                                                        server
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
    ask::{Ask, query},
    print, table,
};
use crate::import;

/// What `audit` is told.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Audit {
    /// How many entries.
    #[arg(short, long, default_value = "100")]
    limit: usize,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Write all entries out, the oldest first, each a line of JSON.
    Export {
        /// The file; standard output without it.
        file: Option<PathBuf>,
    },
    /// Check that no entry of such a file was changed, taken out or put in.
    Verify {
        /// The file; - for standard input.
        file: PathBuf,
        /// By itself alone, without the server: what was cut off at its end is not found then.
        #[arg(long)]
        offline: bool,
    },
}

/// Answers `audit`.
///
/// # Errors
/// The server does not answer, or entries are not those that were written.
pub async fn audit(common: &Common, asked: Audit) -> anyhow::Result<()> {
    match asked.command {
        None => {
            let path = query("audit", &[("limit", Some(asked.limit.to_string()))]);
            Ask::new(common)?.says(Method::GET, &path, None, table::audit).await
        }
        Some(Command::Export { file }) => export(common, file.as_deref()).await,
        Some(Command::Verify { file, offline }) => verify(common, &file, offline).await,
    }
}

async fn export(common: &Common, file: Option<&Path>) -> anyhow::Result<()> {
    let entries = kept(common).await?;
    let text: String = entries.iter().map(|entry| audit_line(entry) + "\n").collect();
    let Some(file) = file else {
        return print(&text);
    };
    atomic_file::replace(file, &text).with_context(|| file.display().to_string())?;
    print(&format!("exported {} entries\n", entries.len()))
}

/// All entries of the store.
async fn kept(common: &Common) -> anyhow::Result<Vec<AuditEntry>> {
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
        bail!("{}: there is no entry in it", file.display());
    };
    let unchained = entries.iter().take_while(|entry| entry.previous.is_none()).count();
    if !offline {
        let head = head(common).await?;
        let is_behind = |entry: &AuditEntry| entry.id > last && entry.id <= head.0;
        entries.extend(kept(common).await?.into_iter().filter(is_behind));
        let reached = check_chain(&entries).context("the store, behind the end of the file")?;
        if reached != Some(head) {
            bail!(
                "the head of the server is entry {} with {}, and the file does not lead there: \
                   the store or the file was changed",
                head.0,
                head.1
            );
        }
    }
    let mut words = format!("good: entry {last} has {hash}\n");
    if unchained > 0 {
        words +=
            &format!("{unchained} entries are of before there was a chain, and are not checked\n");
    }
    print(&words)
}

fn read(text: &str) -> anyhow::Result<Vec<AuditEntry>> {
    let line = |(number, line): (usize, &str)| {
        parse_audit_line(line).with_context(|| format!("line {}", number + 1))
    };
    text.lines().enumerate().map(line).collect()
}

/// The last entry of the server that runs.
async fn head(common: &Common) -> anyhow::Result<(AuditId, AuditHash)> {
    let answer = Ask::new(common)?.answer(Method::GET, "audit/head", None).await?;
    let id = answer["id"].as_i64().context("the server's answer")?;
    let hash = answer["hash"].as_str().and_then(|text| text.parse().ok());
    Ok((AuditId(id), hash.context("the server's answer")?))
}
