//! Command that lists the networks of a server, from the configuration and from each network's
//! socket.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use super::{Common, client::Client, table};
use crate::configuration::Configuration;

/// Manages networks.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Networks {
    /// List all networks with their URLs and their numbers of nodes and users.
    #[command(aliases = ["ls", "show"])]
    List,
}

/// Runs `networks`.
///
/// # Errors
/// The configuration cannot be read.
pub(crate) async fn networks(common: &Common, command: Networks) -> anyhow::Result<()> {
    let Networks::List = command;
    let configuration = Configuration::read(common.config.as_deref())?;
    let client = Client::at(configuration.socket.clone(), common);
    let mut all = Vec::new();
    for network in configuration.each() {
        all.push(summary(common, &network).await);
    }
    client.print(&Value::Array(all), table::networks)
}

/// Summary of a network, with the error if it does not answer.
async fn summary(common: &Common, network: &Configuration) -> Value {
    let client = Client::at(network.socket.clone(), common);
    let (name, url) = (network.name.as_ref().map(|name| name.text()), network.server_url.as_ref());
    let mut summary = json!({ "name": name, "server_url": url.map(ToString::to_string) });
    for (what, path) in [("nodes", "node"), ("users", "user")] {
        match client.send(Method::GET, path, None).await {
            Ok(answer) => summary[what] = json!(answer.as_array().map(Vec::len)),
            Err(error) => {
                summary["error"] = json!(format!("{error:#}"));
                break;
            }
        }
    }
    summary
}
