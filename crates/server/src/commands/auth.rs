//! What waits for an administrator: machines to be let in, and logins by SSH to be confirmed.

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use super::{Common, Nodes, ask::Ask, nodes};

/// What waits for an administrator.
#[derive(Clone, Debug, Subcommand)]
pub enum Auth {
    /// Let a machine in that waits, as `nodes register` does.
    Register {
        /// The owner, by number or name.
        #[arg(short, long)]
        user: String,
        /// The key in the machine's link.
        #[arg(long)]
        auth_id: String,
    },
    /// Let a login by SSH go on.
    Approve {
        /// What it shows.
        #[arg(long)]
        auth_id: String,
    },
    /// End a login by SSH.
    Reject {
        /// What it shows.
        #[arg(long)]
        auth_id: String,
    },
}

/// Answers `auth`.
///
/// # Errors
/// The server does not answer, or refuses.
pub async fn auth(common: &Common, command: Auth) -> anyhow::Result<()> {
    let (path, auth_id, done) = match command {
        Auth::Register { user, auth_id } => {
            return nodes(common, Nodes::Register { user, key: auth_id }).await;
        }
        Auth::Approve { auth_id } => ("auth/approve", auth_id, "approved"),
        Auth::Reject { auth_id } => ("auth/reject", auth_id, "rejected"),
    };
    let body = json!({ "auth_id": auth_id });
    Ask::new(common)?.says(Method::POST, path, Some(body), |_| done.into()).await
}
