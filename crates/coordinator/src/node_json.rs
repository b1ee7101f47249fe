//! JSON of nodes and users for clients (tailscale `tailcfg.Node`, `UserProfile`).

use std::net::SocketAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::{
    nodes::Entry,
    object::{Node, NodeId, User},
    routers::is_exit,
    settings::Settings,
    time::{Time, ZERO_TIME, text_or_zero},
};

/// The user ID of all tagged nodes (recorded from Tailscale's service).
const TAGGED: i64 = 2_147_455_555;

/// Capabilities of every node, without parameters.
const CAPABILITIES: [&str; 4] = [
    "https://tailscale.com/cap/file-sharing",
    "https://tailscale.com/cap/is-admin",
    "https://tailscale.com/cap/ssh",
    // A client without it ignores tailnet lock.
    "https://tailscale.com/cap/tailnet-lock",
];

/// The attribute of exit nodes that clients suggest (`tailcfg.NodeAttrSuggestExitNode`).
pub(crate) const SUGGEST_EXIT: &str = "suggest-exit-node";

/// JSON of a node for a peer to which some of its networks are hidden. `domain` is that of node names.
pub(crate) fn peer(entry: &Entry, hidden: &[IpNet], is_suggested: bool, domain: &str) -> String {
    let node = &entry.node;
    let mut fields = common_fields(node, domain);
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    let mut allowed = addresses(node);
    let exits = node.routes().filter(is_exit);
    let mut primaries = entry.node.primaries.clone();
    primaries.retain(|net| !hidden.contains(net));
    let exits = exits.filter(|net| !hidden.contains(net));
    allowed.extend(exits.chain(primaries.iter().copied()).map(|net| net.to_string()));
    put("AllowedIPs", json!(allowed));
    if !primaries.is_empty() {
        put("PrimaryRoutes", json!(primaries));
    }
    put("Endpoints", json!(texts(&node.endpoints)));
    put("HomeDERP", json!(node.home_relay));
    put("Cap", json!(node.version));
    put("Online", json!(entry.online));
    if let Some(seen) = node.last_seen.filter(|_| !entry.online) {
        put("LastSeen", json!(seen.text()));
    }
    let of = &node.hostinfo;
    let mut hostinfo = json!({ "OS": of.os, "Hostname": of.hostname, "Services": of.services });
    if !of.ssh_keys.is_empty() {
        hostinfo["sshHostKeys"] = json!(of.ssh_keys);
    }
    put("Hostinfo", hostinfo);
    if is_suggested {
        put("CapMap", json!({ SUGGEST_EXIT: null }));
    }
    Value::Object(fields).to_string()
}

/// JSON of a node for itself.
pub(crate) fn own(node: &Node, attributes: &[String], domain: &str, now: Time) -> String {
    let mut fields = common_fields(node, domain);
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    let mut allowed = addresses(node);
    allowed.extend(node.routes().map(|net| net.to_string()));
    put("AllowedIPs", json!(allowed));
    put("Machine", json!(node.machine));
    put("MachineAuthorized", json!(true));
    put("Hostinfo", json!(node.hostinfo));
    if node.has_expired(now) {
        put("Expired", json!(true));
    }
    let capabilities = CAPABILITIES.map(str::to_owned).into_iter();
    let capabilities = capabilities.chain(attributes.iter().cloned());
    put("CapMap", capabilities.map(|name| (name, Value::Null)).collect::<Map<_, _>>().into());
    Value::Object(fields).to_string()
}

fn common_fields(node: &Node, domain: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("ID", json!(node.id));
    put("StableID", json!(node.id.to_string()));
    put("Name", json!(format!("{}.{}.", node.name, domain)));
    put("User", json!(user_number(node)));
    put("Key", json!(node.key));
    put("KeyExpiry", json!(text_or_zero(node.expires)));
    put("DiscoKey", json!(node.disco));
    put("Addresses", json!(addresses(node)));
    put("Created", json!(node.created.text()));
    if node.is_tagged() {
        put("Tags", json!(node.tags));
    }
    if !node.signature.is_empty() {
        put("KeySignature", json!(node.signature));
    }
    fields
}

/// The user ID and the profile of a node's owner.
pub(crate) fn profile(node: &Node, user: Option<&User>) -> (i64, String) {
    let number = user_number(node);
    let (login, display, picture) = match user {
        Some(user) => (user.name.as_str(), display_name(user), user.picture_url.as_str()),
        None => ("tagged-devices", "Tagged Devices", ""),
    };
    let profile = json!({
        "ID": number, "LoginName": login, "DisplayName": display, "ProfilePicURL": picture,
    });
    (number, profile.to_string())
}

/// JSON of the DNS configuration.
pub(crate) fn dns(settings: &Settings) -> String {
    let dns = &settings.dns;
    let resolvers = |texts: &[String]| -> Vec<Value> {
        texts.iter().map(|addr| json!({ "Addr": addr })).collect()
    };
    let servers = resolvers(&dns.nameservers);
    let name = if dns.overrides { "Resolvers" } else { "FallbackResolvers" };
    let split = dns.split.iter();
    let mut split: Map<String, Value> =
        split.map(|(domain, servers)| (domain.clone(), json!(resolvers(servers)))).collect();
    for (name, _) in &dns.extra {
        // Clients before 1.102 query the host's resolvers for names that no route covers.
        let is_below = |domain: &String| {
            name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if !(is_below(&settings.base_domain) || split.keys().any(is_below)) {
            split.insert(name.clone(), json!([]));
        }
    }
    let mut config = Map::new();
    config.insert("Proxied".into(), json!(dns.magic));
    if dns.magic {
        let own = std::iter::once(&settings.base_domain);
        config.insert("Domains".into(), own.chain(&dns.search).cloned().collect());
    }
    if !servers.is_empty() {
        config.insert(name.into(), json!(servers));
    }
    if !split.is_empty() {
        config.insert("Routes".into(), Value::Object(split));
    }
    if !dns.extra.is_empty() {
        let record = |(name, value): &(String, _)| json!({ "Name": name, "Value": value });
        config.insert("ExtraRecords".into(), dns.extra.iter().map(record).collect());
    }
    Value::Object(config).to_string()
}

/// JSON of a removed node: its key has expired, so the client asks its user to log in.
pub(crate) fn removed(id: NodeId, key: &str) -> String {
    let long_ago = Time(123_000).text();
    json!({
        "ID": id.0.max(1), "StableID": id.0.max(1).to_string(), "Name": "", "User": TAGGED, "Key": key,
        "KeyExpiry": long_ago, "Addresses": [], "AllowedIPs": [], "Expired": true,
        "Created": ZERO_TIME, "MachineAuthorized": false,
    })
    .to_string()
}

fn user_number(node: &Node) -> i64 {
    node.user.map_or(TAGGED, |id| id.0)
}

fn addresses(node: &Node) -> Vec<String> {
    vec![format!("{}/32", node.v4), format!("{}/128", node.v6)]
}

/// Endpoints in Go's format.
pub(crate) fn texts(endpoints: &[SocketAddr]) -> Vec<String> {
    endpoints.iter().map(SocketAddr::to_string).collect()
}

fn display_name(user: &User) -> &str {
    if user.display_name.is_empty() { &user.name } else { &user.display_name }
}

/// `tailcfg.User`.
pub(crate) fn user_of(user: Option<&User>) -> Value {
    match user {
        Some(user) => json!({
            "ID": user.id, "DisplayName": display_name(user), "ProfilePicURL": user.picture_url,
            "Created": user.created.text(),
        }),
        None => json!({ "ID": TAGGED, "DisplayName": "Tagged Devices", "Created": ZERO_TIME }),
    }
}

/// `tailcfg.Login`.
pub(crate) fn login_of(user: Option<&User>) -> Value {
    match user {
        Some(user) => json!({
            "ID": user.id, "Provider": "", "LoginName": user.name,
            "DisplayName": display_name(user), "ProfilePicURL": user.picture_url,
        }),
        None => json!({
            "ID": TAGGED, "Provider": "", "LoginName": "tagged-devices",
            "DisplayName": "Tagged Devices", "ProfilePicURL": "",
        }),
    }
}
