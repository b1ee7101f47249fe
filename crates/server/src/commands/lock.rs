//! What the command line asks a running server of tailnet lock.

use clap::Subcommand;
use hyper::Method;

use super::{
    Common,
    ask::{Ask, query},
    table,
};

/// Tailnet lock.
#[derive(Clone, Debug, Subcommand)]
pub enum Lock {
    /// Show whether it is on, which keys sign, and which nodes are locked out.
    Status,
    /// Let a node turn it on, within an hour.
    Allow {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
    },
}

/// Answers `lock`.
///
/// # Errors
/// The server does not answer, or refuses.
pub async fn lock(common: &Common, command: Lock) -> anyhow::Result<()> {
    let (method, path) = match command {
        Lock::Status => (Method::GET, "lock".to_owned()),
        Lock::Allow { identifier } => {
            (Method::POST, query("lock/allow", &[("node", Some(identifier.to_string()))]))
        }
    };
    Ask::new(common)?.says(method, &path, None, table::lock).await
}
