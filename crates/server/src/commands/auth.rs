//! Requests that wait for an administrator: registrations of machines, and SSH logins.

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use super::{Common, Nodes, client::Client, nodes};

/// Manages waiting registrations and logins.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Auth {
    /// Admit a waiting machine, as `nodes register` does.
    Register {
        /// The owner, by number or name.
        #[arg(short, long)]
        user: String,
        /// The key in the machine's link.
        #[arg(long)]
        auth_id: String,
    },
    /// Approve a waiting SSH login.
    Approve {
        /// The key in the login's link.
        #[arg(long)]
        auth_id: String,
    },
    /// Reject a waiting SSH login.
    Reject {
        /// The key in the login's link.
        #[arg(long)]
        auth_id: String,
    },
}

/// Runs `auth`.
///
/// # Errors
/// The server does not answer, or refuses.
pub(crate) async fn auth(common: &Common, command: Auth) -> anyhow::Result<()> {
    let (path, auth_id, done) = match command {
        Auth::Register { user, auth_id } => {
            return nodes(common, Nodes::Register { user, key: auth_id }).await;
        }
        Auth::Approve { auth_id } => ("auth/approve", auth_id, "approved"),
        Auth::Reject { auth_id } => ("auth/reject", auth_id, "rejected"),
    };
    let body = json!({ "auth_id": auth_id });
    Client::new(common)?.print_answer(Method::POST, path, Some(body), |_| done.into()).await
}
