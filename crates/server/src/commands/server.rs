//! Commands about the server itself.

use std::path::PathBuf;

use hyper::Method;
use serde_json::json;

use super::{Common, ask::Ask};
use crate::configuration::Configuration;

/// Answers `health`.
///
/// # Errors
/// The server does not answer, or cannot do its work.
pub async fn health(common: &Common) -> anyhow::Result<()> {
    Ask::new(common)?.says(Method::GET, "health", None, |_| "healthy".into()).await
}

/// Answers `version`.
///
/// # Errors
/// Standard output cannot be written.
pub fn version(common: &Common) -> anyhow::Result<()> {
    let version = json!({ "version": env!("CARGO_PKG_VERSION") });
    let words = |_: &_| format!("linerate-server {}", env!("CARGO_PKG_VERSION"));
    Ask::at(PathBuf::new(), common).print(&version, words)
}

/// Answers `configtest`. The files that the configuration names are not read.
///
/// # Errors
/// The configuration cannot be read, or contradicts itself.
pub fn check_configuration(common: &Common) -> anyhow::Result<()> {
    Configuration::read(common.config.as_deref())?.complete().check().map(|_| ())
}
