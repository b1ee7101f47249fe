//! What the command line asks a running server.

mod ask;
mod audit;
mod auth;
mod lifetime;
mod lock;
mod networks;
mod out;
mod policy;
mod server;
mod table;
mod yaml;

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use coordinator::Time;
use hyper::Method;
use ipnet::IpNet;
use serde_json::{Value, json};

use self::ask::{Ask, part, query};
pub use self::{
    audit::{Audit, audit},
    auth::{Auth, auth},
    lifetime::lifetime,
    lock::{Lock, lock},
    networks::{Networks, networks},
    out::print,
    policy::{policies, policy_in_force, policy_says, remarks},
    server::{check_configuration, health, version},
};
use crate::{clock::now, configuration::Configuration, serve::about_certificate};

/// What all of these have.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The server's configuration.
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The network that the command is about; that of the configuration's top level without it.
    #[arg(long, global = true, value_name = "NAME")]
    pub network: Option<String>,
    /// How the answer is printed; a table without it.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Output>,
    /// Ask nothing before something is deleted.
    #[arg(long, global = true)]
    pub force: bool,
}

impl Common {
    /// The configuration of the network that the command is about.
    ///
    /// # Errors
    /// It cannot be read, or has no such network.
    pub fn configuration(&self) -> anyhow::Result<Configuration> {
        Configuration::read(self.config.as_deref())?.of_network(self.network.as_deref())
    }
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// JSON that people read.
    Json,
    /// JSON in one line.
    JsonLine,
    /// YAML.
    Yaml,
}

/// Users.
#[derive(Clone, Debug, Subcommand)]
pub enum Users {
    /// Make a user.
    #[command(aliases = ["c", "new"])]
    Create {
        /// The name.
        name: String,
        /// The name that is shown.
        #[arg(short, long, default_value = "")]
        display_name: String,
        /// An address.
        #[arg(short, long, default_value = "")]
        email: String,
        /// Where a picture is.
        #[arg(short, long, default_value = "")]
        picture_url: String,
    },
    /// Show all users, or one.
    #[command(aliases = ["ls", "show"])]
    List {
        /// That of this number.
        #[arg(short, long, group = "which")]
        identifier: Option<u64>,
        /// That of this name.
        #[arg(short, long, group = "which")]
        name: Option<String>,
        /// Those of this address.
        #[arg(short, long, group = "which")]
        email: Option<String>,
    },
    /// Give a user another name.
    #[command(alias = "mv")]
    Rename {
        #[command(flatten)]
        who: Who,
        /// The other name.
        #[arg(short = 'r', long)]
        new_name: String,
    },
    /// Make a user the owner of the network: autogroup:owner in the policy.
    MakeOwner(Who),
    /// Delete a user without nodes, except the owner.
    #[command(aliases = ["delete", "rm"])]
    Destroy(Who),
}

/// Which user.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Who {
    /// By number.
    #[arg(short, long)]
    pub identifier: Option<i64>,
    /// By name.
    #[arg(short, long)]
    pub name: Option<String>,
}

impl Who {
    fn text(self) -> String {
        self.name.or(self.identifier.map(|id| id.to_string())).unwrap_or_default()
    }
}

/// Pre-auth keys.
#[derive(Clone, Debug, Subcommand)]
pub enum PreAuthKeys {
    /// Make a key, and print it: it is not shown again.
    #[command(aliases = ["c", "new"])]
    Create {
        /// Whose nodes it makes, by number or name.
        #[arg(short, long)]
        user: Option<String>,
        /// It makes more than one node.
        #[arg(long)]
        reusable: bool,
        /// Its nodes are forgotten when they go.
        #[arg(long)]
        ephemeral: bool,
        /// How long it is good for, as 90m, 24h, 7d or 1w; 0 for without end.
        #[arg(short, long, default_value = "1h", value_parser = lifetime)]
        expiration: Duration,
        /// Tags of its nodes.
        #[arg(long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    /// Show all keys, without what is secret.
    #[command(aliases = ["ls", "show"])]
    List {
        /// Those of this user, by number or name.
        #[arg(short, long)]
        user: Option<String>,
    },
    /// Have a key make no more nodes.
    #[command(aliases = ["revoke", "exp", "e"])]
    Expire {
        /// Its number.
        #[arg(short, long)]
        id: i64,
    },
    /// Delete a key.
    #[command(aliases = ["del", "rm", "d"])]
    Delete {
        /// Its number.
        #[arg(short, long)]
        id: i64,
    },
}

/// API keys.
#[derive(Clone, Debug, Subcommand)]
pub enum ApiKeys {
    /// Make a key, and print it: it is not shown again.
    #[command(aliases = ["c", "new"])]
    Create {
        /// How long it is good for, as 24h, 90d or 90d12h; 0 for without end.
        #[arg(short, long, default_value = "90d", value_parser = lifetime)]
        expiration: Duration,
    },
    /// Show all keys, without what is secret.
    #[command(aliases = ["ls", "show"])]
    List,
    /// Have a key be good for nothing any more.
    #[command(aliases = ["revoke", "exp", "e"])]
    Expire(WhichKey),
    /// Delete a key.
    #[command(aliases = ["remove", "del", "rm"])]
    Delete(WhichKey),
}

/// Which API key.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct WhichKey {
    /// By number.
    #[arg(short, long)]
    pub id: Option<i64>,
    /// By prefix.
    #[arg(short, long)]
    pub prefix: Option<String>,
}

impl WhichKey {
    fn text(self) -> String {
        self.prefix.or(self.id.map(|id| id.to_string())).unwrap_or_default()
    }
}

/// Nodes.
#[derive(Clone, Debug, Subcommand)]
pub enum Nodes {
    /// Show all nodes.
    #[command(aliases = ["ls", "show"])]
    List {
        /// Those of this user, by number or name.
        #[arg(short, long)]
        user: Option<String>,
        /// Show tags. They are always shown: this is for scripts that were written for headscale.
        #[arg(short, long)]
        tags: bool,
    },
    /// Show which networks nodes offer, and which they may route.
    #[command(aliases = ["lsr", "routes"])]
    ListRoutes {
        /// Of this node.
        #[arg(short, long)]
        identifier: Option<i64>,
    },
    /// Show what a node's client itself finds wrong: it is asked.
    Health {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
    },
    /// Let a machine in that waits.
    Register {
        /// Whose it is to be, by number or name.
        #[arg(short, long)]
        user: String,
        /// What the machine shows.
        #[arg(short, long)]
        key: String,
    },
    /// Give addresses to nodes that lack one. Every node has one of IPv4 and one of IPv6 from the first on.
    #[command(name = "backfillips")]
    BackfillIps,
    /// Have a node's key expire.
    #[command(aliases = ["logout", "exp", "e"])]
    Expire {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
        /// When, as 2027-01-31T00:00:00Z; now without it.
        #[arg(short, long)]
        expiry: Option<String>,
        /// Never.
        #[arg(short, long, conflicts_with = "expiry")]
        disable: bool,
    },
    /// Give a node another name.
    Rename {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
        /// The other name.
        name: String,
    },
    /// Delete a node.
    #[command(aliases = ["del", "rm"])]
    Delete {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
    },
    /// Give a node tags instead of an owner.
    #[command(aliases = ["tags", "t"])]
    Tag {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
        /// The tags.
        #[arg(short, long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    /// Let a node route these networks, and no others.
    ApproveRoutes {
        /// Its number.
        #[arg(short, long)]
        identifier: i64,
        /// The networks; empty for none.
        #[arg(short, long, value_delimiter = ',', value_parser = net)]
        routes: Vec<Option<IpNet>>,
    },
}

/// Answers `users`.
///
/// # Errors
/// The server does not answer, or refuses.
pub async fn users(common: &Common, command: Users) -> anyhow::Result<()> {
    let ask = Ask::new(common)?;
    let path = match command {
        Users::Create { name, display_name, email, picture_url } => {
            let body = json!({
                "name": name, "display_name": display_name, "email": email,
                "picture_url": picture_url,
            });
            return ask.says(Method::POST, "user", Some(body), table::user).await;
        }
        Users::List { identifier, name, email } => {
            let identifier = identifier.map(|id| id.to_string());
            let path = query("user", &[("id", identifier), ("name", name), ("email", email)]);
            return ask.says(Method::GET, &path, None, table::users).await;
        }
        Users::Rename { who, new_name } => {
            format!("user/{}/rename/{}", part(&who.text()), part(&new_name))
        }
        Users::MakeOwner(who) => format!("user/{}/owner", part(&who.text())),
        Users::Destroy(who) => {
            confirm(common.force, "the user")?;
            let path = format!("user/{}", part(&who.text()));
            return ask.says(Method::DELETE, &path, None, |_| "deleted".into()).await;
        }
    };
    ask.says(Method::POST, &path, None, table::user).await
}

/// Answers `preauthkeys`.
///
/// # Errors
/// As [`users`].
pub async fn pre_auth_keys(common: &Common, command: PreAuthKeys) -> anyhow::Result<()> {
    let ask = Ask::new(common)?;
    match command {
        PreAuthKeys::Create { user, reusable, ephemeral, expiration, tags } => {
            let expires = (!expiration.is_zero()).then(|| now().after(expiration));
            let body = json!({
                "user": user, "reusable": reusable, "ephemeral": ephemeral, "acl_tags": tags,
                "expiration": expires.map(Time::text),
            });
            let only_key = |key: &Value| key["key"].as_str().unwrap_or_default().to_owned();
            ask.says(Method::POST, "preauthkey", Some(body), only_key).await
        }
        PreAuthKeys::List { user } => {
            let path = query("preauthkey", &[("user", user)]);
            ask.says(Method::GET, &path, None, table::keys).await
        }
        PreAuthKeys::Expire { id } => {
            let path = format!("preauthkey/{id}/expire");
            ask.says(Method::POST, &path, None, |_| "expired".into()).await
        }
        PreAuthKeys::Delete { id } => {
            let path = format!("preauthkey/{id}");
            ask.says(Method::DELETE, &path, None, |_| "deleted".into()).await
        }
    }
}

/// Answers `apikeys`.
///
/// # Errors
/// As [`users`].
pub async fn api_keys(common: &Common, command: ApiKeys) -> anyhow::Result<()> {
    let ask = Ask::new(common)?;
    match command {
        ApiKeys::Create { expiration } => {
            let expires = (!expiration.is_zero()).then(|| now().after(expiration));
            let body = json!({ "expiration": expires.map(Time::text) });
            let only_key = |key: &Value| key["key"].as_str().unwrap_or_default().to_owned();
            ask.says(Method::POST, "apikey", Some(body), only_key).await
        }
        ApiKeys::List => ask.says(Method::GET, "apikey", None, table::api_keys).await,
        ApiKeys::Expire(which) => {
            let path = format!("apikey/{}/expire", part(&which.text()));
            ask.says(Method::POST, &path, None, |_| "expired".into()).await
        }
        ApiKeys::Delete(which) => {
            let path = format!("apikey/{}", part(&which.text()));
            ask.says(Method::DELETE, &path, None, |_| "deleted".into()).await
        }
    }
}

/// Answers `admin-link`.
///
/// # Errors
/// As [`users`].
pub async fn admin_link(common: &Common) -> anyhow::Result<()> {
    let ask = Ask::new(common)?;
    let answer = ask.answer(Method::POST, "admin/link", None).await?;
    ask.print(&answer, |answer| answer["link"].as_str().unwrap_or_default().to_owned())?;
    // Standard output has the link alone.
    if let Some(fingerprint) = answer["certificate_fingerprint"].as_str() {
        eprintln!("\n{}", about_certificate(fingerprint));
    }
    Ok(())
}

/// Answers `nodes`.
///
/// # Errors
/// As [`users`].
pub async fn nodes(common: &Common, command: Nodes) -> anyhow::Result<()> {
    let ask = Ask::new(common)?;
    let (path, body) = match command {
        Nodes::List { user, tags: _ } => {
            let path = query("node", &[("user", user)]);
            return ask.says(Method::GET, &path, None, table::nodes).await;
        }
        Nodes::ListRoutes { identifier: None } => {
            return ask.says(Method::GET, "node", None, table::routes).await;
        }
        Nodes::ListRoutes { identifier: Some(id) } => {
            let one = |node: &Value| table::routes(&json!([node]));
            return ask.says(Method::GET, &format!("node/{id}"), None, one).await;
        }
        Nodes::Health { identifier } => {
            let path = format!("node/{identifier}/health");
            return ask.says(Method::GET, &path, None, table::warnings).await;
        }
        Nodes::Delete { identifier } => {
            confirm(common.force, "the node")?;
            let path = format!("node/{identifier}");
            return ask.says(Method::DELETE, &path, None, |_| "deleted".into()).await;
        }
        Nodes::BackfillIps => {
            let path = query("node/backfillips", &[("confirmed", Some("true".to_owned()))]);
            let done = |_: &Value| "all nodes have their addresses".into();
            return ask.says(Method::POST, &path, None, done).await;
        }
        Nodes::Register { user, key } => {
            (query("node/register", &[("user", Some(user)), ("key", Some(key))]), None)
        }
        Nodes::Expire { identifier, expiry, disable } => {
            let never = disable.then(|| "true".to_owned());
            let path = format!("node/{identifier}/expire");
            (query(&path, &[("expiry", expiry), ("disable", never)]), None)
        }
        Nodes::Rename { identifier, name } => {
            (format!("node/{identifier}/rename/{}", part(&name)), None)
        }
        Nodes::Tag { identifier, tags } => {
            (format!("node/{identifier}/tags"), Some(json!({ "tags": tags })))
        }
        Nodes::ApproveRoutes { identifier, routes } => {
            let routes: Vec<IpNet> = routes.into_iter().flatten().collect();
            (format!("node/{identifier}/approve_routes"), Some(json!({ "routes": routes })))
        }
    };
    ask.says(Method::POST, &path, body, |node| table::nodes(&json!([node]))).await
}

/// Asks before something is gone for good.
fn confirm(force: bool, what: &str) -> anyhow::Result<()> {
    use std::io::{IsTerminal, Write, stdin, stdout};
    // A script says it by running the command, as with headscale's --force.
    if force || !stdin().is_terminal() {
        return Ok(());
    }
    print!("Delete {what}? [y/N] ");
    stdout().flush()?;
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    if !line.trim().eq_ignore_ascii_case("y") {
        bail!("not deleted");
    }
    Ok(())
}

fn net(text: &str) -> Result<Option<IpNet>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("{text:?} is not a network such as 10.0.0.0/8"))
}
