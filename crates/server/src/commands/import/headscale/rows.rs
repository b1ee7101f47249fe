//! Converts rows of headscale's tables to objects. An unreadable field that only describes a machine
//! is dropped, with a note. If an unreadable field grants or restricts rights, its row is left out
//! or has expired.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use anyhow::Context;
use coordinator::{
    Hostinfo, Time,
    object::{
        ApiKey, ApiKeyId, Identity, KeyId, Node, NodeId, PreAuthKey, RegisterMethod, User, UserId,
    },
    secret::{self, Hash},
};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::{Row as _, sqlite::SqliteRow};
use zeroize::Zeroizing;

use crate::clock::now;

/// Columns of users.
pub(super) const USERS: &[&str] = &[
    "id",
    "name",
    "display_name",
    "email",
    "provider_identifier",
    "profile_pic_url",
    "created_at",
    "deleted_at",
];
/// Columns of pre-auth keys.
pub(super) const KEYS: &[&str] = &[
    "id",
    "key",
    "prefix",
    "hash",
    "user_id",
    "reusable",
    "ephemeral",
    "used",
    "tags",
    "expiration",
    "revoked",
    "created_at",
];
/// Columns of API keys.
pub(super) const API_KEYS: &[&str] = &["id", "prefix", "hash", "expiration", "created_at"];
/// Columns of nodes.
pub(super) const NODES: &[&str] = &[
    "id",
    "machine_key",
    "node_key",
    "disco_key",
    "endpoints",
    "host_info",
    "ipv4",
    "ipv6",
    "hostname",
    "given_name",
    "user_id",
    "register_method",
    "tags",
    "forced_tags",
    "auth_key_id",
    "approved_routes",
    "last_seen",
    "expiry",
    "created_at",
    "deleted_at",
];

/// A row. Each column is a string. Null is an empty string.
pub(super) struct Row {
    values: BTreeMap<&'static str, String>,
    /// Notes about dropped fields and other changes.
    notes: Vec<String>,
}

impl Row {
    /// A row with these columns.
    ///
    /// # Errors
    /// A column is missing.
    pub(super) fn of(row: &SqliteRow, columns: &[&'static str]) -> anyhow::Result<Self> {
        let value = |name: &&'static str| {
            // Columns that grant rights do not accept the replacement characters of
            // invalid UTF-8.
            let bytes: Option<Vec<u8>> = row.try_get_unchecked(*name)?;
            Ok((*name, String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()))
        };
        let values = columns.iter().map(value).collect::<anyhow::Result<_>>()?;
        Ok(Self { values, notes: Vec::new() })
    }

    /// A column as a string.
    pub(super) fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// A column as a number.
    ///
    /// # Errors
    /// It is not a number.
    pub(super) fn number(&self, name: &str) -> anyhow::Result<Option<i64>> {
        let text = Some(self.text(name)).filter(|text| !text.is_empty());
        text.map(|text| text.parse().with_context(|| format!("{name}: {text:?}"))).transpose()
    }

    /// The ID of the row, or zero.
    pub(super) fn id(&self) -> i64 {
        self.number("id").ok().flatten().unwrap_or_default()
    }

    /// Adds a note.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// All notes.
    pub(super) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    /// Whether nodes of a pre-auth key are removed when they disconnect. An unreadable value
    /// means yes, because this grants less.
    pub(super) fn is_ephemeral(&self) -> bool {
        self.flag("ephemeral").unwrap_or(true)
    }

    /// A column as a boolean. `None` if it is neither true nor false.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.text(name).to_ascii_lowercase().as_str() {
            "1" | "true" => Some(true),
            "" | "0" | "false" => Some(false),
            _ => None,
        }
    }

    fn time(&self, name: &str) -> anyhow::Result<Option<Time>> {
        let text = self.text(name);
        // Go's zero time means "never".
        if text.is_empty() || text.starts_with("0001-01-01") {
            return Ok(None);
        }
        as_time(text).map(Some).with_context(|| format!("{name}: {text:?} is not a time"))
    }

    /// The value, or the default with a note.
    fn or_dropped<T: Default>(&mut self, read: anyhow::Result<T>) -> T {
        read.unwrap_or_else(|error| {
            self.notes.push(dropped(&error));
            T::default()
        })
    }

    fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        &self,
        name: &'static str,
    ) -> anyhow::Result<Option<T>> {
        let text = Some(self.text(name)).filter(|text| !text.is_empty());
        text.map(str::parse).transpose().context(name)
    }

    /// Parses a column as JSON. An empty column gives the default.
    fn json<T: DeserializeOwned + Default>(&self, name: &'static str) -> anyhow::Result<T> {
        match self.text(name) {
            "" => Ok(T::default()),
            text => {
                let read: Option<T> = serde_json::from_str(text).context(name)?;
                Ok(read.unwrap_or_default())
            }
        }
    }

    /// The readable elements of a JSON list.
    fn list<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        &mut self,
        name: &'static str,
    ) -> Vec<T> {
        let read = self.json::<Vec<Value>>(name);
        let mut list = Vec::new();
        for value in self.or_dropped(read) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match text.parse().with_context(|| format!("{name}: {text:?}")) {
                Ok(element) => list.push(element),
                Err(error) => self.notes.push(dropped(&error)),
            }
        }
        list
    }
}

fn dropped(error: &anyhow::Error) -> String {
    format!("{error:#}: dropped")
}

/// Converts a user.
///
/// # Errors
/// An essential field is invalid.
pub(super) fn user(row: &mut Row) -> anyhow::Result<User> {
    let created = row.time("created_at");
    let (name, email) = (row.text("name"), row.text("email"));
    let identity = Some(row.text("provider_identifier")).filter(|text| !text.is_empty());
    Ok(User {
        id: UserId(row.number("id")?.unwrap_or_default()),
        name: if name.is_empty() { email } else { name }.to_owned(),
        display_name: row.text("display_name").to_owned(),
        email: email.to_owned(),
        picture_url: row.text("profile_pic_url").to_owned(),
        identity: identity.map(Identity::of_headscale),
        groups: Vec::new(),
        is_owner: false,
        created: row.or_dropped(created).unwrap_or_else(now),
    })
}

/// Converts a pre-auth key, with tags from another table.
///
/// # Errors
/// An essential field is invalid.
pub(super) fn pre_auth_key(row: &mut Row, more_tags: &[String]) -> anyhow::Result<PreAuthKey> {
    let (prefix, hash) = match row.text("prefix") {
        // Versions before 0.28 store the whole key.
        "" => {
            let text = Zeroizing::new(row.text("key").to_owned());
            let parts = secret::read(&text).context("it is not a key")?;
            (parts.prefix.to_owned(), Hash::of(parts.secret))
        }
        prefix => (prefix.to_owned(), bcrypt(row)?),
    };
    let mut tags: Vec<String> = row.json("tags")?;
    tags.extend(more_tags.iter().cloned());
    tags.sort_unstable();
    tags.dedup();
    let created = row.time("created_at");
    Ok(PreAuthKey {
        id: KeyId(row.number("id")?.unwrap_or_default()),
        user: row.number("user_id")?.map(UserId),
        prefix,
        hash,
        // A value that is neither true nor false grants less.
        reusable: row.flag("reusable").unwrap_or(false),
        ephemeral: row.is_ephemeral(),
        used: row.flag("used").unwrap_or(true),
        expires: ended(row)?,
        tags,
        created: row.or_dropped(created).unwrap_or_else(now),
    })
}

/// When a key expires. A revoked key has expired.
fn ended(row: &Row) -> anyhow::Result<Option<Time>> {
    let expires = row.time("expiration")?;
    if row.text("revoked").is_empty() {
        return Ok(expires);
    }
    let revoked = row.time("revoked").ok().flatten().unwrap_or_else(now).min(now());
    Ok(Some(expires.map_or(revoked, |expires| expires.min(revoked))))
}

/// Converts an API key.
///
/// # Errors
/// An essential field is invalid.
pub(super) fn api_key(row: &mut Row) -> anyhow::Result<ApiKey> {
    let prefix = Some(row.text("prefix")).filter(|prefix| !prefix.is_empty());
    let created = row.time("created_at");
    Ok(ApiKey {
        id: ApiKeyId(row.number("id")?.unwrap_or_default()),
        prefix: prefix.context("it lacks a prefix")?.to_owned(),
        hash: bcrypt(row)?,
        expires: row.time("expiration")?,
        created: row.or_dropped(created).unwrap_or_else(now),
    })
}

fn bcrypt(row: &Row) -> anyhow::Result<Hash> {
    Hash::of_bcrypt(row.text("hash")).context("its hash is not a bcrypt hash")
}

/// Converts a node and its addresses. Versions before 0.26 store its approved routes in another
/// table.
///
/// # Errors
/// An essential field is invalid.
pub(super) fn node(
    row: &mut Row,
    more_routes: &[String],
) -> anyhow::Result<(Node, Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let mut hostinfo = hostinfo(row);
    if hostinfo.hostname.is_empty() {
        row.text("hostname").clone_into(&mut hostinfo.hostname);
    }
    let (disco, v4, v6) = (row.parsed("disco_key"), row.parsed("ipv4"), row.parsed("ipv6"));
    let (created, last_seen) = (row.time("created_at"), row.time("last_seen"));
    let endpoints: Vec<SocketAddr> = row.list("endpoints");
    let mut approved = row.list("approved_routes");
    for text in more_routes {
        match text.parse::<IpNet>() {
            Ok(route) => approved.push(route),
            Err(_) => row.note(format!("the approved route {text:?} is invalid and was dropped")),
        }
    }
    let mut tags: Vec<String> = row.json("tags")?;
    tags.extend(row.json::<Vec<String>>("forced_tags")?);
    let key = |name: &'static str| Some(row.text(name)).filter(|text| !text.is_empty());
    let name = Some(row.text("given_name")).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| row.text("hostname")).to_owned();
    let machine = key("machine_key").context("machine_key: it is missing")?;
    let machine = machine.parse().context("machine_key")?;
    let node_key = key("node_key").context("node_key: it is missing")?;
    let node_key = node_key.parse().context("node_key")?;
    let node = Node {
        id: NodeId(row.number("id")?.unwrap_or_default()),
        machine,
        key: node_key,
        disco: row.or_dropped(disco).unwrap_or_default(),
        user: row.number("user_id")?.map(UserId),
        tags,
        name,
        // `coordinator::Import` sets these.
        renamed: false,
        v4: Ipv4Addr::UNSPECIFIED,
        v6: Ipv6Addr::UNSPECIFIED,
        endpoints,
        home_relay: hostinfo.net_info.home_relay,
        version: 0,
        hostinfo,
        ephemeral: false,
        auth_key: row.number("auth_key_id")?.map(KeyId),
        method: match row.text("register_method") {
            "cli" => RegisterMethod::Cli,
            "oidc" => RegisterMethod::Oidc,
            _ => RegisterMethod::AuthKey,
        },
        expires: expiry(row),
        created: row.or_dropped(created).unwrap_or_else(now),
        rekeyed: None,
        changes: 0,
        last_seen: row.or_dropped(last_seen),
        approved,
        primaries: Vec::new(),
        tka_key: String::new(),
        signature: String::new(),
    };
    Ok((node, row.or_dropped(v4), row.or_dropped(v6)))
}

/// When a node expires. If the time is unreadable, the node has expired, and its user has to log in
/// again.
fn expiry(row: &mut Row) -> Option<Time> {
    row.time("expiry").unwrap_or_else(|error| {
        row.notes.push(format!("{error:#}: its key has expired"));
        Some(now())
    })
}

/// Parses the description of a machine, without unreadable fields.
fn hostinfo(row: &mut Row) -> Hostinfo {
    let text = row.text("host_info");
    let text = if text.is_empty() { "null" } else { text };
    let read = serde_json::from_str::<Value>(text).context("host_info");
    let value = row.or_dropped(read);
    let (hostinfo, dropped) = readable::<Hostinfo>(value);
    row.notes.extend(dropped.iter().map(|name| format!("host_info.{name}: dropped")));
    hostinfo.bounded()
}

/// Parses an object without its unreadable members or parts of members. Returns their names as well.
fn readable<T: DeserializeOwned + Default>(value: Value) -> (T, Vec<String>) {
    let is_good = |key: &str, value: Value| {
        serde_json::from_value::<T>(Value::from_iter([(key, value)])).is_ok()
    };
    let (mut good, mut dropped) = (serde_json::Map::new(), Vec::new());
    let members = match value {
        Value::Object(members) => members,
        _ => serde_json::Map::new(),
    };
    for (key, member) in members {
        let kept = match member {
            Value::Null => continue,
            member if is_good(&key, member.clone()) => member,
            Value::Array(elements) => {
                let mut kept = Vec::new();
                for (at, element) in elements.into_iter().enumerate() {
                    match is_good(&key, Value::from_iter([element.clone()])) {
                        true => kept.push(element),
                        false => dropped.push(format!("{key}[{at}]")),
                    }
                }
                Value::from(kept)
            }
            Value::Object(parts) => {
                let mut kept = serde_json::Map::new();
                for (name, part) in parts {
                    let alone = Value::from_iter([(name.as_str(), part.clone())]);
                    match is_good(&key, alone) {
                        true => drop(kept.insert(name, part)),
                        false => dropped.push(format!("{key}.{name}")),
                    }
                }
                Value::Object(kept)
            }
            _ => {
                dropped.push(key);
                continue;
            }
        };
        good.insert(key, kept);
    }
    (serde_json::from_value(Value::Object(good)).unwrap_or_default(), dropped)
}

/// Parses a time in the forms of Go's SQLite drivers: `2026-11-23 22:00:00.123+00:00`, or with
/// `+0000 UTC`.
fn as_time(text: &str) -> Option<Time> {
    let (date, rest) = text.split_once([' ', 'T'])?;
    let mut words = rest.split_ascii_whitespace();
    let clock = words.next()?;
    let zone = words.next().unwrap_or_default();
    let zone = match zone.split_at_checked(3) {
        Some((hours, minutes)) if minutes.len() == 2 => format!("{hours}:{minutes}"),
        _ => zone.to_owned(),
    };
    let has_zone = clock.ends_with('Z') || clock.contains(['+', '-']) || !zone.is_empty();
    Time::read(&format!("{date}T{clock}{zone}{}", if has_zone { "" } else { "Z" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_the_forms_of_gos_drivers() {
        for text in [
            "2026-11-23 22:00:00.123456789+00:00",
            "2026-11-23 22:00:00+00:00",
            "2026-11-23 23:00:00.5 +0100 CET",
            "2026-11-23 22:00:00 +0000 UTC",
            "2026-11-23 22:00:00",
            "2026-11-23T22:00:00Z",
        ] {
            assert_eq!(as_time(text), Time::read("2026-11-23T22:00:00Z"), "{text}");
        }
        for text in ["", "yesterday", "2026-11-23"] {
            assert_eq!(as_time(text), None, "{text}");
        }
    }
}
