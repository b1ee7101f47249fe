//! The settings of a node, as flags. Flags of `tailscale up` have the same meaning here.

use anyhow::{Context, bail};
use clap::Args;
use ipnet::IpNet;
use member::client::Client;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

/// Settings that remain until they are set again.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The name of this machine in the tailnet; the host's by default.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true, value_parser = hostname)]
    hostname: Option<String>,
    /// Networks that other nodes may reach through this one, once they are approved; none if empty.
    #[arg(long, value_name = "P,..", value_delimiter = ',')]
    advertise_routes: Option<Vec<String>>,
    /// Offer this node as an exit node: other nodes may reach the internet through it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    advertise_exit_node: Option<bool>,
    /// Tags that this node requests.
    #[arg(long, value_name = "T,..", value_delimiter = ',', value_parser = tag)]
    advertise_tags: Option<Vec<String>>,
    /// Use the networks that other nodes advertise.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    accept_routes: Option<bool>,
    /// Use the DNS settings of the tailnet; on by default.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    accept_dns: Option<bool>,
    /// Use this node as the exit node, by its name or address; none if empty.
    #[arg(long, value_name = "NODE")]
    exit_node: Option<String>,
    /// Reach the local networks of this machine directly while an exit node is used.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    exit_node_allow_lan_access: Option<bool>,
    /// Accept no connections from other nodes.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    shields_up: Option<bool>,
    /// Masquerade packets to advertised routes with this machine's address; on by default.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    snat_subnet_routes: Option<bool>,
    /// Be a peer relay at this UDP port, 0 for any, for nodes that the tailnet's policy allows; not a
    /// relay if empty.
    #[arg(long, value_name = "PORT", value_parser = relay_port)]
    relay_server_port: Option<RelayPort>,
    /// Probe many random ports to reach a peer behind a symmetric NAT (birthday probing), and take part if
    /// this node is behind one; on by default.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    guess_ports: Option<bool>,
    /// The coordinator's key, as `linerate-server` prints it: mkey:HEX. A coordinator with another key is
    /// refused. By default the key of the first connection.
    #[arg(long, value_name = "KEY", value_parser = server_key)]
    server_key: Option<String>,
    /// The user that may change settings, in addition to root.
    #[arg(long, value_name = "USER")]
    operator: Option<String>,
}

/// The port of a peer relay; `None` for no relay.
#[derive(Clone, Copy, Debug)]
struct RelayPort(Option<u16>);

/// The maximum length of a machine's name, in bytes (`tailscale up`).
const MAX_HOSTNAME_LEN: usize = 256;
/// The networks of an exit node.
const EXIT: [&str; 2] = ["0.0.0.0/0", "::/0"];

impl Flags {
    /// Checks the flags that can be checked without the node.
    ///
    /// # Errors
    /// An advertised network is invalid, or only one of the two default routes is advertised.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.advertise_routes.as_ref().map(|given| read_routes(given)).transpose().map(drop)
    }

    /// The given settings in the form of LocalAPI (`ipn/prefs.go`, `MaskedPrefs`).
    ///
    /// # Errors
    /// A network is invalid, or the exit node does not exist.
    pub(crate) fn masked(&self, runtime: &Runtime, client: &Client) -> anyhow::Result<Value> {
        let mut prefs = Map::new();
        let mut set = |name: &str, value: Value| {
            prefs.insert(format!("{name}Set"), json!(true));
            prefs.insert(name.to_owned(), value);
        };
        if let Some(name) = &self.hostname {
            set("Hostname", json!(name));
        }
        if let Some(tags) = &self.advertise_tags {
            let tags: Vec<&String> = tags.iter().filter(|tag| !tag.is_empty()).collect();
            set("AdvertiseTags", json!(tags));
        }
        if self.advertise_routes.is_some() || self.advertise_exit_node.is_some() {
            set("AdvertiseRoutes", json!(self.routes(runtime, client)?));
        }
        if let Some(node) = &self.exit_node {
            set("ExitNodeIP", json!(""));
            let id = if node.is_empty() { String::new() } else { find(runtime, client, node)? };
            set("ExitNodeID", json!(id));
        }
        if let Some(RelayPort(port)) = self.relay_server_port {
            set("RelayServerPort", json!(port));
        }
        if let Some(key) = &self.server_key {
            set("ServerKey", json!(key));
        }
        if let Some(user) = &self.operator {
            set("OperatorUser", json!(user));
        }
        let switches = [
            ("RouteAll", self.accept_routes),
            ("CorpDNS", self.accept_dns),
            ("ExitNodeAllowLANAccess", self.exit_node_allow_lan_access),
            ("ShieldsUp", self.shields_up),
            ("NoSNAT", self.snat_subnet_routes.map(|snat| !snat)),
            ("NoPortGuessing", self.guess_ports.map(|guesses| !guesses)),
        ];
        for (name, value) in switches {
            if let Some(value) = value {
                set(name, json!(value));
            }
        }
        Ok(Value::Object(prefs))
    }

    /// The networks to advertise. Those of a flag that is not given remain.
    fn routes(&self, runtime: &Runtime, client: &Client) -> anyhow::Result<Vec<String>> {
        let now = runtime.block_on(client.get("prefs"))?;
        let now = now["AdvertiseRoutes"].as_array().cloned().unwrap_or_default();
        let (exits, routes): (Vec<String>, Vec<String>) = now
            .iter()
            .filter_map(|net| Some(net.as_str()?.to_owned()))
            .partition(|net| EXIT.contains(&net.as_str()));
        let given = self.advertise_routes.as_ref().map(|given| read_routes(given)).transpose()?;
        let (mut routes, has_exit) = given.unwrap_or((routes, false));
        let is_exit = self.advertise_exit_node.unwrap_or(has_exit || !exits.is_empty());
        routes.extend(EXIT.iter().filter(|_| is_exit).map(|net| (*net).to_owned()));
        Ok(routes)
    }

    /// Whether any flag is given.
    pub(crate) fn any_is_set(&self) -> bool {
        let Self { hostname, advertise_routes, advertise_exit_node, advertise_tags, .. } = self;
        let Self { accept_routes, accept_dns, exit_node, exit_node_allow_lan_access, .. } = self;
        let Self { shields_up, snat_subnet_routes, operator, relay_server_port, .. } = self;
        let Self { guess_ports, server_key, .. } = self;
        let texts = [hostname, exit_node, operator, server_key].iter().any(|text| text.is_some());
        let lists = [advertise_routes, advertise_tags].iter().any(|list| list.is_some());
        let switches = [advertise_exit_node, accept_routes, accept_dns, exit_node_allow_lan_access];
        texts
            || lists
            || switches.iter().any(|switch| switch.is_some())
            || relay_server_port.is_some()
            || [shields_up, snat_subnet_routes, guess_ports].iter().any(|switch| switch.is_some())
    }
}

fn hostname(text: &str) -> Result<String, &'static str> {
    match text {
        _ if text.len() > MAX_HOSTNAME_LEN => Err("a name must not be longer than 256 bytes"),
        _ if text.starts_with('-') => Err("a name must not begin with a hyphen"),
        _ if text.contains(char::is_control) => Err("a name must not contain control characters"),
        _ => Ok(text.to_owned()),
    }
}

/// A tag, as Tailscale checks it (`tailcfg.CheckTag`).
fn tag(text: &str) -> Result<String, &'static str> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    match text.strip_prefix("tag:") {
        None if text.is_empty() => Ok(String::new()),
        None => Err("a tag must begin with `tag:`"),
        Some(name) if !name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            Err("a tag must have a letter after `tag:`")
        }
        Some(name) if !name.as_bytes().iter().all(is_letter) => {
            Err("a tag must consist of letters, digits and hyphens")
        }
        Some(_) => Ok(text.to_owned()),
    }
}

fn relay_port(text: &str) -> Result<RelayPort, std::num::ParseIntError> {
    if text.is_empty() { Ok(RelayPort(None)) } else { text.parse().map(|it| RelayPort(Some(it))) }
}

fn server_key(text: &str) -> Result<String, &'static str> {
    member::client::read_server_key(text).map(|key| key.to_string())
}

/// Parses the networks of `--advertise-routes`. Also returns whether they include those of an exit node.
fn read_routes(texts: &[String]) -> anyhow::Result<(Vec<String>, bool)> {
    let texts = texts.iter().filter(|text| !text.is_empty());
    let routes = texts.map(|text| network(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let (exits, routes): (Vec<_>, Vec<_>) =
        routes.into_iter().partition(|net| EXIT.contains(&net.as_str()));
    if let Some(missing) = EXIT.iter().find(|net| !exits.iter().any(|exit| exit == *net))
        && let Some(exit) = exits.first()
    {
        bail!(
            "--advertise-routes: {exit} without {missing}: an exit node must advertise both: use \
             --advertise-exit-node"
        );
    }
    Ok((routes, !exits.is_empty()))
}

fn network(text: &str) -> anyhow::Result<String> {
    let net: IpNet = text.parse().with_context(|| format!("--advertise-routes: {text}"))?;
    if net.trunc() != net {
        bail!("--advertise-routes: {text} has host bits: use {}", net.trunc());
    }
    Ok(net.to_string())
}

/// Looks up the stable ID of an exit node by its name or address.
fn find(runtime: &Runtime, client: &Client, node: &str) -> anyhow::Result<String> {
    let status = runtime.block_on(client.get("status"))?;
    let peers = status["Peer"].as_object().into_iter().flat_map(Map::values);
    let found = peers.into_iter().find(|peer| super::status::has_name(peer, node));
    let found = found.with_context(|| format!("--exit-node: {node}: no such node"))?;
    if found["ExitNodeOption"] != json!(true) {
        bail!("--exit-node: {node} does not offer to be an exit node");
    }
    let id = found["ID"]
        .as_str()
        .with_context(|| format!("--exit-node: the ID of {node} is unknown"))?;
    Ok(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_follow_the_rules_of_tailscale() {
        for good in ["", "a", "web.prod", "My Mac", "münchen", &"a".repeat(256)] {
            assert_eq!(hostname(good).as_deref(), Ok(good));
        }
        for bad in ["-x", "--", "a\nb", &"a".repeat(257)] {
            assert!(hostname(bad).is_err(), "{bad}");
        }
        for good in ["", "tag:a", "tag:web-1", "tag:A9"] {
            assert_eq!(tag(good).as_deref(), Ok(good));
        }
        for bad in ["server", "tag:", "tag:1a", "tag:-a", "tag:a_b", "tag:a.b", "tag:ä", "TAG:a"] {
            assert!(tag(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_default_route_alone_is_refused() {
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            read_routes(&texts).map_err(|error| error.to_string())
        };
        let own = vec!["10.0.0.0/8".to_owned()];
        assert_eq!(read(&["10.0.0.0/8"]), Ok((own.clone(), false)));
        assert_eq!(read(&["::/0", "10.0.0.0/8", "0.0.0.0/0"]), Ok((own, true)));
        assert_eq!(read(&[""]), Ok((Vec::new(), false)));
        for (one, other) in [("0.0.0.0/0", "::/0"), ("::/0", "0.0.0.0/0")] {
            let refused = read(&["10.0.0.0/8", one]).unwrap_err();
            assert!(refused.contains(&format!("{one} without {other}")), "{refused}");
        }
    }
}
