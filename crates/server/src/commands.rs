//! Commands that send requests to the running server.

mod audit;
mod auth;
mod client;
pub(crate) mod import;
mod networks;
mod policy;
pub(crate) mod policy_file;
mod server;
mod stdout;
mod table;
mod tka;
mod yaml;

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use coordinator::Time;
use hyper::Method;
use ipnet::IpNet;
use serde_json::{Value, json};

use self::client::{Client, part, query};
pub(crate) use self::{
    audit::{Audit, audit},
    auth::{Auth, auth},
    networks::{Networks, networks},
    policy::{policies, policy_in_force, remarks, submit_policy},
    server::{check_configuration, health, version},
    stdout::print,
    tka::{TailnetLock, tailnet_lock},
};
use crate::{
    clock::now,
    configuration::{Configuration, duration::parse_duration},
    tls::own_certificate::certificate_hint,
};

/// Arguments of all commands.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Configuration file of the server.
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The network that the command applies to. By default, the one of the configuration's top
    /// level.
    #[arg(long, global = true, value_name = "NAME")]
    pub network: Option<String>,
    /// Output format. By default, a table.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Output>,
    /// Delete without confirmation.
    #[arg(long, global = true)]
    pub force: bool,
}

impl Common {
    /// The configuration of the selected network.
    ///
    /// # Errors
    /// It cannot be read, or has no such network.
    pub(crate) fn configuration(&self) -> anyhow::Result<Configuration> {
        Configuration::read(self.config.as_deref())?.of_network(self.network.as_deref())
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Indented JSON.
    Json,
    /// JSON on one line.
    JsonLine,
    /// YAML.
    Yaml,
}

/// Manages users.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Users {
    /// Create a user.
    #[command(aliases = ["c", "new"])]
    Create {
        /// The user's name.
        name: String,
        /// The display name.
        #[arg(short, long, default_value = "")]
        display_name: String,
        /// The mail address.
        #[arg(short, long, default_value = "")]
        email: String,
        /// URL of a picture.
        #[arg(short, long, default_value = "")]
        picture_url: String,
    },
    /// List all users, or one.
    #[command(aliases = ["ls", "show"])]
    List {
        /// Only the user with this ID.
        #[arg(short, long, group = "which")]
        identifier: Option<u64>,
        /// Only the user with this name.
        #[arg(short, long, group = "which")]
        name: Option<String>,
        /// Only users with this mail address.
        #[arg(short, long, group = "which")]
        email: Option<String>,
    },
    /// Rename a user.
    #[command(alias = "mv")]
    Rename {
        #[command(flatten)]
        user: UserSelector,
        /// The new name.
        #[arg(short = 'r', long)]
        new_name: String,
    },
    /// Make a user the owner of the network (`autogroup:owner` in the policy).
    MakeOwner(UserSelector),
    /// Delete a user without nodes, except the owner.
    #[command(aliases = ["delete", "rm"])]
    Destroy(UserSelector),
}

/// Selects a user.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct UserSelector {
    /// The user's ID.
    #[arg(short, long)]
    pub identifier: Option<i64>,
    /// The user's name.
    #[arg(short, long)]
    pub name: Option<String>,
}

impl UserSelector {
    fn text(self) -> String {
        self.name.or(self.identifier.map(|id| id.to_string())).unwrap_or_default()
    }
}

/// Manages pre-auth keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PreAuthKeys {
    /// Create a key and print it. It is not shown again.
    #[command(aliases = ["c", "new"])]
    Create {
        /// Owner of the nodes that join with it, by ID or name.
        #[arg(short, long)]
        user: Option<String>,
        /// Several nodes can join with it.
        #[arg(long)]
        reusable: bool,
        /// Nodes that join with it are removed when they disconnect.
        #[arg(long)]
        ephemeral: bool,
        /// Lifetime, such as 90m, 24h, 7d or 1w. 0: it never expires.
        #[arg(short, long, default_value = "1h", value_parser = parse_duration)]
        expiration: Duration,
        /// Tags of the nodes that join with it.
        #[arg(long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    /// List all keys, without their secrets.
    #[command(aliases = ["ls", "show"])]
    List {
        /// Only keys of this user, by ID or name.
        #[arg(short, long)]
        user: Option<String>,
    },
    /// Expire a key.
    #[command(aliases = ["revoke", "exp", "e"])]
    Expire {
        /// The key's ID.
        #[arg(short, long)]
        id: i64,
    },
    /// Delete a key.
    #[command(aliases = ["del", "rm", "d"])]
    Delete {
        /// The key's ID.
        #[arg(short, long)]
        id: i64,
    },
}

/// Manages API keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ApiKeys {
    /// Create a key and print it. It is not shown again.
    #[command(aliases = ["c", "new"])]
    Create {
        /// Lifetime, such as 24h, 90d or 90d12h. 0: it never expires.
        #[arg(short, long, default_value = "90d", value_parser = parse_duration)]
        expiration: Duration,
    },
    /// List all keys, without their secrets.
    #[command(aliases = ["ls", "show"])]
    List,
    /// Expire a key.
    #[command(aliases = ["revoke", "exp", "e"])]
    Expire(ApiKeySelector),
    /// Delete a key.
    #[command(aliases = ["remove", "del", "rm"])]
    Delete(ApiKeySelector),
}

/// Selects an API key.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ApiKeySelector {
    /// The key's ID.
    #[arg(short, long)]
    pub id: Option<i64>,
    /// The key's prefix.
    #[arg(short, long)]
    pub prefix: Option<String>,
}

impl ApiKeySelector {
    fn text(self) -> String {
        self.prefix.or(self.id.map(|id| id.to_string())).unwrap_or_default()
    }
}

/// Manages nodes.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Nodes {
    /// List all nodes.
    #[command(aliases = ["ls", "show"])]
    List {
        /// Only nodes of this user, by ID or name.
        #[arg(short, long)]
        user: Option<String>,
        /// Show tags. They are always shown: the flag exists for scripts that were written
        /// for headscale.
        #[arg(short, long)]
        tags: bool,
    },
    /// List the routes that nodes offer, and those that are approved.
    #[command(aliases = ["lsr", "routes"])]
    ListRoutes {
        /// Only routes of this node.
        #[arg(short, long)]
        identifier: Option<i64>,
    },
    /// Show the health warnings of a node's client, which is queried.
    Health {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
    },
    /// Admit a waiting machine.
    Register {
        /// The owner, by ID or name.
        #[arg(short, long)]
        user: String,
        /// The key in the machine's link.
        #[arg(short, long)]
        key: String,
    },
    /// Give addresses to nodes that lack one. Every node has an IPv4 and an IPv6 address from
    /// the start.
    #[command(name = "backfillips")]
    BackfillIps,
    /// Set when a node's key expires.
    #[command(aliases = ["logout", "exp", "e"])]
    Expire {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
        /// The time, such as 2027-01-31T00:00:00Z. By default, now.
        #[arg(short, long)]
        expiry: Option<String>,
        /// The key never expires.
        #[arg(short, long, conflicts_with = "expiry")]
        disable: bool,
    },
    /// Rename a node.
    Rename {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
        /// The new name.
        name: String,
    },
    /// Delete a node.
    #[command(aliases = ["del", "rm"])]
    Delete {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
    },
    /// Replace a node's owner by tags.
    #[command(aliases = ["tags", "t"])]
    Tag {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
        /// The tags.
        #[arg(short, long, value_delimiter = ',')]
        tags: Vec<String>,
    },
    /// Set the approved routes of a node.
    ApproveRoutes {
        /// The node's ID.
        #[arg(short, long)]
        identifier: i64,
        /// The networks. An empty list revokes all.
        #[arg(short, long, value_delimiter = ',', value_parser = net)]
        routes: Vec<Option<IpNet>>,
    },
}

/// Runs `users`.
///
/// # Errors
/// The server does not answer, or refuses.
pub(crate) async fn users(common: &Common, command: Users) -> anyhow::Result<()> {
    let client = Client::new(common)?;
    let path = match command {
        Users::Create { name, display_name, email, picture_url } => {
            let body = json!({
                "name": name, "display_name": display_name, "email": email,
                "picture_url": picture_url,
            });
            return client.print_answer(Method::POST, "user", Some(body), table::user).await;
        }
        Users::List { identifier, name, email } => {
            let identifier = identifier.map(|id| id.to_string());
            let path = query("user", &[("id", identifier), ("name", name), ("email", email)]);
            return client.print_answer(Method::GET, &path, None, table::users).await;
        }
        Users::Rename { user, new_name } => {
            format!("user/{}/rename/{}", part(&user.text()), part(&new_name))
        }
        Users::MakeOwner(user) => format!("user/{}/owner", part(&user.text())),
        Users::Destroy(user) => {
            confirm(common.force, "the user")?;
            let path = format!("user/{}", part(&user.text()));
            return client.print_answer(Method::DELETE, &path, None, |_| "deleted".into()).await;
        }
    };
    client.print_answer(Method::POST, &path, None, table::user).await
}

/// Runs `preauthkeys`.
///
/// # Errors
/// As [`users`].
pub(crate) async fn pre_auth_keys(common: &Common, command: PreAuthKeys) -> anyhow::Result<()> {
    let client = Client::new(common)?;
    match command {
        PreAuthKeys::Create { user, reusable, ephemeral, expiration, tags } => {
            let expires = (!expiration.is_zero()).then(|| now().after(expiration));
            let body = json!({
                "user": user, "reusable": reusable, "ephemeral": ephemeral, "acl_tags": tags,
                "expiration": expires.map(Time::text),
            });
            let only_key = |key: &Value| key["key"].as_str().unwrap_or_default().to_owned();
            client.print_answer(Method::POST, "preauthkey", Some(body), only_key).await
        }
        PreAuthKeys::List { user } => {
            let path = query("preauthkey", &[("user", user)]);
            client.print_answer(Method::GET, &path, None, table::keys).await
        }
        PreAuthKeys::Expire { id } => {
            let path = format!("preauthkey/{id}/expire");
            client.print_answer(Method::POST, &path, None, |_| "expired".into()).await
        }
        PreAuthKeys::Delete { id } => {
            let path = format!("preauthkey/{id}");
            client.print_answer(Method::DELETE, &path, None, |_| "deleted".into()).await
        }
    }
}

/// Runs `apikeys`.
///
/// # Errors
/// As [`users`].
pub(crate) async fn api_keys(common: &Common, command: ApiKeys) -> anyhow::Result<()> {
    let client = Client::new(common)?;
    match command {
        ApiKeys::Create { expiration } => {
            let expires = (!expiration.is_zero()).then(|| now().after(expiration));
            let body = json!({ "expiration": expires.map(Time::text) });
            let only_key = |key: &Value| key["key"].as_str().unwrap_or_default().to_owned();
            client.print_answer(Method::POST, "apikey", Some(body), only_key).await
        }
        ApiKeys::List => client.print_answer(Method::GET, "apikey", None, table::api_keys).await,
        ApiKeys::Expire(which) => {
            let path = format!("apikey/{}/expire", part(&which.text()));
            client.print_answer(Method::POST, &path, None, |_| "expired".into()).await
        }
        ApiKeys::Delete(which) => {
            let path = format!("apikey/{}", part(&which.text()));
            client.print_answer(Method::DELETE, &path, None, |_| "deleted".into()).await
        }
    }
}

/// Runs `admin-link`.
///
/// # Errors
/// As [`users`].
pub(crate) async fn admin_link(common: &Common) -> anyhow::Result<()> {
    let client = Client::new(common)?;
    let answer = client.send(Method::POST, "admin/link", None).await?;
    client.print(&answer, |answer| answer["link"].as_str().unwrap_or_default().to_owned())?;
    // Standard output contains the link alone.
    if let Some(fingerprint) = answer["certificate_fingerprint"].as_str() {
        eprintln!("\n{}", certificate_hint(fingerprint));
    }
    Ok(())
}

/// Runs `nodes`.
///
/// # Errors
/// As [`users`].
pub(crate) async fn nodes(common: &Common, command: Nodes) -> anyhow::Result<()> {
    let client = Client::new(common)?;
    let (path, body) = match command {
        Nodes::List { user, tags: _ } => {
            let path = query("node", &[("user", user)]);
            return client.print_answer(Method::GET, &path, None, table::nodes).await;
        }
        Nodes::ListRoutes { identifier: None } => {
            return client.print_answer(Method::GET, "node", None, table::routes).await;
        }
        Nodes::ListRoutes { identifier: Some(id) } => {
            let one = |node: &Value| table::routes(&json!([node]));
            return client.print_answer(Method::GET, &format!("node/{id}"), None, one).await;
        }
        Nodes::Health { identifier } => {
            let path = format!("node/{identifier}/health");
            return client.print_answer(Method::GET, &path, None, table::warnings).await;
        }
        Nodes::Delete { identifier } => {
            confirm(common.force, "the node")?;
            let path = format!("node/{identifier}");
            return client.print_answer(Method::DELETE, &path, None, |_| "deleted".into()).await;
        }
        Nodes::BackfillIps => {
            let path = query("node/backfillips", &[("confirmed", Some("true".to_owned()))]);
            let done = |_: &Value| "all nodes have their addresses".into();
            return client.print_answer(Method::POST, &path, None, done).await;
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
    client.print_answer(Method::POST, &path, body, |node| table::nodes(&json!([node]))).await
}

/// Asks for confirmation before something is deleted.
fn confirm(force: bool, what: &str) -> anyhow::Result<()> {
    use std::io::{IsTerminal, Write, stdin, stdout};
    // A script confirms by running the command, as with headscale's --force.
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
