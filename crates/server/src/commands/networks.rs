//! The networks of a server: what the configuration has, and what each answers for itself.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use super::{Common, ask::Ask, table};
use crate::configuration::Configuration;

/// Networks.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum Networks {
    /// Show all networks, with their URLs and how many nodes and users they have.
    #[command(aliases = ["ls", "show"])]
    List,
}

/// Answers `networks`.
///
/// # Errors
/// The configuration cannot be read.
pub async fn networks(common: &Common, command: Networks) -> anyhow::Result<()> {
    let Networks::List = command;
    let configuration = Configuration::read(common.config.as_deref())?;
    let ask = Ask::at(configuration.socket.clone(), common);
    let mut all = Vec::new();
    for network in configuration.each() {
        all.push(shown(common, &network).await);
    }
    ask.print(&Value::Array(all), table::networks)
}

/// One of them. Where it does not answer, why.
async fn shown(common: &Common, network: &Configuration) -> Value {
    let ask = Ask::at(network.socket.clone(), common);
    let (name, url) = (network.name.as_ref().map(|name| name.text()), network.server_url.as_ref());
    let mut shown = json!({ "name": name, "server_url": url.map(ToString::to_string) });
    for (what, path) in [("nodes", "node"), ("users", "user")] {
        match ask.answer(Method::GET, path, None).await {
            Ok(answer) => shown[what] = json!(answer.as_array().map(Vec::len)),
            Err(error) => {
                shown["error"] = json!(format!("{error:#}"));
                break;
            }
        }
    }
    shown
}
