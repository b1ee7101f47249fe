//! Commands for tailnet lock.

use clap::Subcommand;
use hyper::Method;

use super::{
    Common,
    client::{Client, query},
    table,
};

/// Manages tailnet lock.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TailnetLock {
    /// Show whether it is enabled, its signing keys, and the nodes that are locked out.
    Status,
    /// Allow a node to enable it within an hour.
    Allow {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
    },
}

/// Runs `lock`.
///
/// # Errors
/// The server does not answer, or refuses.
pub(crate) async fn tailnet_lock(common: &Common, command: TailnetLock) -> anyhow::Result<()> {
    let (method, path) = match command {
        TailnetLock::Status => (Method::GET, "lock".to_owned()),
        TailnetLock::Allow { identifier } => {
            (Method::POST, query("lock/allow", &[("node", Some(identifier.to_string()))]))
        }
    };
    Client::new(common)?.print_answer(method, &path, None, table::lock).await
}
