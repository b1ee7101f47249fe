//! Commands about the server itself.

use std::path::PathBuf;

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
    let build = sys::long_version!();
    let version = json!({ "version": env!("CARGO_PKG_VERSION"), "build": build });
    let words = |_: &_| format!("linerate-server {build}");
    Client::at(PathBuf::new(), common).print(&version, words)
}

/// Runs `configtest`. Files that the configuration names are not read.
///
/// # Errors
/// The configuration cannot be read, or contradicts itself.
pub(crate) fn check_configuration(common: &Common) -> anyhow::Result<()> {
    Configuration::read(common.config.as_deref())?.complete().check().map(|_| ())
}
