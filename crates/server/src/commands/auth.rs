//! Logins by SSH that wait to be confirmed.

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use super::{Common, ask::Ask};

/// Logins by SSH that wait to be confirmed.
#[derive(Clone, Debug, Subcommand)]
pub enum Auth {
    /// Let a login go on.
    Approve {
        /// What it shows.
        #[arg(long)]
        auth_id: String,
    },
    /// End a login.
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
        Auth::Approve { auth_id } => ("auth/approve", auth_id, "approved"),
        Auth::Reject { auth_id } => ("auth/reject", auth_id, "rejected"),
    };
    let body = json!({ "auth_id": auth_id });
    Ask::new(common)?.says(Method::POST, path, Some(body), |_| done.into()).await
}
