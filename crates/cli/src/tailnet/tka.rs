//! `linerate lock`: tailnet lock of a node of linerate, like `tailscale lock`.

use anyhow::{Context, bail};
use base64ct::{Base64, Encoding as _};
use clap::{Args, Subcommand};
use member::{
    client::Client,
    tka::{new_secret, public_key, read_secret, trusted_key},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{NodeSelector, queries::word, runtime};

/// Arguments of `linerate lock`.
#[derive(Args)]
pub(crate) struct Tka {
    /// The interface of the node; optional if this machine has only one node.
    #[arg(short, long, value_name = "IFACE", global = true)]
    interface: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Show whether tailnet lock is on, the trusted keys, and the peers that are locked out.
    Status,
    /// Turn tailnet lock on with these trusted keys, which must include this node's key. Prints secrets,
    /// each of which can turn it off.
    Init {
        /// Trusted keys, as `linerate lock status` shows them on their nodes.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        /// The number of secrets to create.
        #[arg(long, default_value = "1", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
        gen_disablements: u8,
    },
    /// Sign the key of a node with this node's key.
    Sign {
        /// The node key.
        node: String,
        /// The tailnet lock key of the node, with which it can renew its signature.
        key: Option<String>,
    },
    /// Add trusted keys.
    Add {
        /// The keys.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
    /// Remove trusted keys. Nodes that they signed are signed again with this node's key.
    Remove {
        /// The keys.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        /// Do not sign these nodes again: they are locked out.
        #[arg(long)]
        no_re_sign: bool,
    },
    /// Turn tailnet lock off for the whole network.
    Disable {
        /// A secret that `init` printed.
        secret: String,
    },
    /// Show the last changes.
    Log {
        /// The maximum number of changes.
        #[arg(long, default_value = "50")]
        limit: usize,
    },
}

impl Tka {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = NodeSelector::new(self.interface).client()?;
        let node_client = NodeClient { client, runtime: runtime()? };
        match self.command.unwrap_or(Command::Status) {
            Command::Status => show(&node_client.get("tka/status")?),
            Command::Init { keys, gen_disablements } => {
                node_client.init(&keys, gen_disablements)?;
            }
            Command::Sign { node, key } => {
                let key = key.as_deref().map(public_key).transpose()?;
                node_client.sign(&node, key.as_ref().map(|key| &key[..]).unwrap_or_default())?;
            }
            Command::Add { keys } => node_client.modify("AddKeys", &trusted(&keys)?)?,
            Command::Remove { keys, no_re_sign } => {
                let removed = trusted(&keys)?;
                if !no_re_sign {
                    keys.iter().try_for_each(|key| node_client.re_sign(key))?;
                }
                node_client.modify("RemoveKeys", &removed)?;
            }
            Command::Disable { secret } => {
                let secret = read_secret(&secret)?;
                node_client
                    .runtime
                    .block_on(node_client.client.post_bytes("tka/disable", &secret))?;
            }
            Command::Log { limit } => {
                let log = node_client.get(&format!("tka/log?limit={limit}"))?;
                for update in log.as_array().into_iter().flatten() {
                    let change = update["Change"].as_str().unwrap_or_default();
                    println!("{change:<12}{}", hex(&update["Hash"]));
                }
            }
        }
        Ok(())
    }
}

/// A client of the node, with the runtime in which to wait for answers.
struct NodeClient {
    client: Client,
    runtime: Runtime,
}

impl NodeClient {
    fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.runtime.block_on(self.client.get(path))?)
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        Ok(self.runtime.block_on(self.client.post(path, Some(body)))?)
    }

    fn init(&self, keys: &[String], secrets: u8) -> anyhow::Result<()> {
        let keys = trusted(keys)?;
        let mut made = Vec::new();
        for _ in 0..secrets {
            made.push(new_secret()?);
        }
        let hashes: Vec<String> =
            made.iter().map(|(_, hash)| Base64::encode_string(hash)).collect();
        // Printed before the request, so that a lost answer loses no secret.
        println!(
            "Store these secrets: each can turn tailnet lock off, and they are not shown again:"
        );
        for (secret, _) in &made {
            println!("    {}", **secret);
        }
        let body = json!({ "Keys": keys, "DisablementValues": hashes });
        self.post("tka/init", &body)?;
        println!("Tailnet lock is on.");
        Ok(())
    }

    fn sign(&self, node: &str, wrapping: &[u8]) -> anyhow::Result<()> {
        let body = json!({ "NodeKey": node, "RotationPublic": Base64::encode_string(wrapping) });
        self.post("tka/sign", &body).map(drop)
    }

    fn modify(&self, what: &str, keys: &[Value]) -> anyhow::Result<()> {
        self.post("tka/modify", &json!({ what: keys })).map(drop)
    }

    /// Replaces the signatures of a key by signatures of this node's key.
    fn re_sign(&self, key: &str) -> anyhow::Result<()> {
        let (id, own) = (public_key(key)?, self.get("tka/status")?);
        if own["PublicKey"].as_str().map(public_key).transpose()? == Some(id) {
            bail!("a node cannot remove its own key: run this command on another node");
        }
        let request = self.client.post_bytes("tka/affected-sigs", &id);
        let signatures = self.runtime.block_on(request)?;
        for text in signatures.as_array().into_iter().flatten().filter_map(Value::as_str) {
            let signature = Base64::decode_vec(text).ok().context("invalid signature")?;
            let (node, wrapping) = member::tka::signed_node(&signature)?;
            self.sign(&node, &wrapping)?;
        }
        Ok(())
    }
}

fn trusted(keys: &[String]) -> anyhow::Result<Vec<Value>> {
    keys.iter().map(|key| trusted_key(key)).collect()
}

fn show(status: &Value) {
    let is_on = status["Enabled"] == true;
    let own = word(&status["PublicKey"]);
    println!("tailnet lock  {}", if is_on { "on" } else { "off" });
    println!("own key       {}", displayed(&own));
    if !is_on {
        return;
    }
    let signed = if status["NodeKeySigned"] == true { "signed" } else { "LOCKED OUT: not signed" };
    println!("this node     {} {signed}", word(&status["NodeKey"]));
    for key in status["TrustedKeys"].as_array().into_iter().flatten() {
        let name = word(&key["Key"]);
        let suffix = if name == own { " (this node's)" } else { "" };
        println!("trusted       {} {}{suffix}", displayed(&name), key["Votes"]);
    }
    for peer in status["FilteredPeers"].as_array().into_iter().flatten() {
        let name = word(&peer["Name"]);
        println!("locked out    {} {}", name.trim_end_matches('.'), word(&peer["NodeKey"]));
    }
}

/// A key in the form of Tailscale's commands.
fn displayed(key: &str) -> String {
    key.replacen("nlpub:", "tlpub:", 1)
}

fn hex(bytes: &Value) -> String {
    let bytes = bytes.as_array().into_iter().flatten().filter_map(Value::as_u64);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}
