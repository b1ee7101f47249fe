//! Commands about the server itself.

use std::{path::PathBuf, sync::LazyLock};

use hyper::Method;
use serde_json::json;

use super::{Common, client::Client};
use crate::configuration::Configuration;

/// Runs `health`.
///
/// # Errors
/// The server does not answer, or is not healthy.
pub(crate) async fn health(common: &Common) -> anyhow::Result<()> {
    Client::new(common)?.print_answer(Method::GET, "health", None, |_| "healthy".into()).await
}

/// Runs `version`.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn version(common: &Common) -> anyhow::Result<()> {
    let version = json!({ "version": env!("CARGO_PKG_VERSION"), "build": long_version() });
    let words = |_: &_| format!("linerate-server {}", long_version());
    Client::at(PathBuf::new(), common).print(&version, words)
}

/// The version with the commit, if `packaging/commit.rs` found it, and the target.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        sys::process::long_version(env!("CARGO_PKG_VERSION"), option_env!("LINERATE_COMMIT"))
    });
    &TEXT
}

/// Runs `configtest`. Files that the configuration names are not read.
///
/// # Errors
/// The configuration cannot be read, or contradicts itself.
pub(crate) fn check_configuration(common: &Common) -> anyhow::Result<()> {
    Configuration::read(common.config.as_deref())?.complete().check().map(|_| ())
}
