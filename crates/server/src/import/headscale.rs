//! The database of headscale 0.29 (`hscontrol/db/schema.sql`), read and never written.

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow};
use coordinator::{
    Hostinfo, Import as Network, Skipped, Time,
    object::{
        ApiKey, ApiKeyId, Identity, KeyId, Kind, Node, NodeId, Object, Policy, PolicyId,
        PreAuthKey, RegisterMethod, User, UserId,
    },
    secret::{self, Hash},
};
use serde::de::DeserializeOwned;
use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use zeroize::Zeroizing;

use super::{Import, Incoming};
use crate::{clock::now, configuration::Configuration, files::known_key};

/// Its files beside the database, as its packages set it up.
const NOISE: &str = "noise_private.key";
const RELAY: &str = "derp_server_private.key";

/// Reads all of it.
///
/// # Errors
/// It is not such a database, or the keys that belong to it are not there.
pub async fn read(asked: &Import, configuration: &Configuration) -> anyhow::Result<Incoming> {
    let beside = |name: &str| asked.file.with_file_name(name);
    let noise = asked.noise_key.clone().unwrap_or_else(|| beside(NOISE));
    let noise = known_key(&noise)?.with_context(|| {
        format!(
            "{}: there is no such file; no client would know this server without headscale's key: \
             name it with --noise-key",
            noise.display()
        )
    })?;
    let relay = asked.derp_key.clone();
    let relay = match &relay {
        Some(file) => {
            Some(known_key(file)?.with_context(|| format!("{}: no such file", file.display()))?)
        }
        None => known_key(&beside(RELAY))?,
    };
    let options = SqliteConnectOptions::new().filename(&asked.file).read_only(true);
    let mut reader = Reader {
        from: options.connect().await?,
        to: Network::new(configuration.network_settings().prefixes),
        remarks: Vec::new(),
        keys: Vec::new(),
    };
    reader.users().await?;
    reader.keys().await?;
    reader.api_keys().await?;
    reader.nodes().await?;
    let saved = reader.policy().await?;
    reader.numbers().await?;
    let Reader { from, to, mut remarks, .. } = reader;
    from.close().await?;
    let (mut objects, skipped) = to.finish();
    objects.extend(policy(asked, saved)?.map(|policy| policy.stored()));
    remarks.extend(skipped.iter().map(|(id, why)| left_out("node", id.0, &anyhow!("{why}"))));
    Ok(Incoming { objects, noise, relay, remarks })
}

/// The policy that is in force from the first moment: a network is not opened by being moved.
fn policy(asked: &Import, saved: Option<String>) -> anyhow::Result<Option<Policy>> {
    let named =
        |file: &PathBuf| fs::read_to_string(file).with_context(|| file.display().to_string());
    let Some(text) = asked.policy.as_ref().map(named).transpose()?.or(saved) else {
        return Ok(None);
    };
    ::policy::Policy::parse(&text).map_err(|refusal| {
        anyhow!("the policy is refused; name another with --policy\n{refusal}")
    })?;
    Ok(Some(Policy { id: PolicyId(1), text, created: now() }))
}

struct Reader {
    from: SqliteConnection,
    to: Network,
    remarks: Vec<String>,
    /// Which pre-auth keys make ephemeral nodes.
    keys: Vec<KeyId>,
}

impl Reader {
    async fn users(&mut self) -> anyhow::Result<()> {
        let columns = "id, name, display_name, email, provider_identifier, profile_pic_url,
                       CAST(created_at AS TEXT) AS created_at";
        for row in self.rows("users WHERE deleted_at IS NULL", columns).await? {
            let id: i64 = row.try_get("id")?;
            let outcome = user(&row).and_then(|user| self.add_user(user));
            self.note("user", id, outcome);
        }
        Ok(())
    }

    /// Several users of providers may have one name, which are told apart here by their addresses or
    /// numbers.
    fn add_user(&mut self, user: User) -> anyhow::Result<()> {
        let name = user.name.clone();
        let other_names = [user.email.clone(), format!("{name}-{}", user.id)];
        let mut outcome = self.to.user(user.clone());
        for other in other_names {
            if !matches!(outcome, Err(Skipped::Name(_))) || other.is_empty() {
                continue;
            }
            outcome = self.to.user(User { name: other.clone(), ..user.clone() });
            if outcome.is_ok() {
                self.remarks.push(format!("user {}, another {name}, is {other}", user.id));
            }
        }
        Ok(outcome?)
    }

    async fn keys(&mut self) -> anyhow::Result<()> {
        let columns = "id, key, prefix, CAST(hash AS TEXT) AS hash, user_id,
                       COALESCE(reusable, 0) AS reusable, COALESCE(ephemeral, 0) AS ephemeral,
                       COALESCE(used, 0) AS used, tags, CAST(expiration AS TEXT) AS expiration,
                       CAST(created_at AS TEXT) AS created_at";
        for row in self.rows("pre_auth_keys", columns).await? {
            let id: i64 = row.try_get("id")?;
            let outcome = pre_auth_key(&row).and_then(|key| {
                let (id, is_ephemeral) = (key.id, key.ephemeral);
                self.to.key(key)?;
                self.keys.extend(is_ephemeral.then_some(id));
                Ok(())
            });
            self.note("pre-auth key", id, outcome);
        }
        Ok(())
    }

    async fn api_keys(&mut self) -> anyhow::Result<()> {
        let columns = "id, prefix, CAST(hash AS TEXT) AS hash,
                       CAST(expiration AS TEXT) AS expiration,
                       CAST(created_at AS TEXT) AS created_at";
        for row in self.rows("api_keys", columns).await? {
            let id: i64 = row.try_get("id")?;
            let outcome = api_key(&row).and_then(|key| Ok(self.to.api_key(key)?));
            self.note("API key", id, outcome);
        }
        Ok(())
    }

    async fn nodes(&mut self) -> anyhow::Result<()> {
        let columns = "id, machine_key, node_key, disco_key, endpoints, host_info, ipv4, ipv6,
                       given_name, user_id, register_method, tags, auth_key_id, approved_routes,
                       CAST(last_seen AS TEXT) AS last_seen, CAST(expiry AS TEXT) AS expiry,
                       CAST(created_at AS TEXT) AS created_at";
        for row in self.rows("nodes WHERE deleted_at IS NULL", columns).await? {
            let id: i64 = row.try_get("id")?;
            let outcome = node(&row).and_then(|mut node| {
                node.ephemeral = node.auth_key.is_some_and(|key| self.keys.contains(&key));
                let address = |name| optional(&row, name);
                let (v4, v6) = (address("ipv4")?, address("ipv6")?);
                let v4 = v4.map(|text| text.parse()).transpose().context("ipv4")?;
                let v6 = v6.map(|text| text.parse()).transpose().context("ipv6")?;
                Ok(self.to.node(node, v4, v6)?)
            });
            self.note("node", id, outcome);
        }
        Ok(())
    }

    async fn policy(&mut self) -> anyhow::Result<Option<String>> {
        let newest = "policies WHERE deleted_at IS NULL ORDER BY id DESC LIMIT 1";
        let row = self.rows_of(newest, "data").await?.into_iter().next();
        let text = row.map(|row| optional(&row, "data")).transpose()?.flatten();
        Ok(text.filter(|text| !text.trim().is_empty()))
    }

    /// The last numbers that were given, also to what is gone.
    async fn numbers(&mut self) -> anyhow::Result<()> {
        for row in self.rows_of("sqlite_sequence", "name, seq").await? {
            let (name, last): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let kind = match &*name {
                "users" => Kind::User,
                "nodes" => Kind::Node,
                "pre_auth_keys" => Kind::PreAuthKey,
                "api_keys" => Kind::ApiKey,
                _ => continue,
            };
            self.to.given(kind, last);
        }
        Ok(())
    }

    async fn rows(&mut self, from: &str, columns: &str) -> anyhow::Result<Vec<SqliteRow>> {
        self.rows_of(&format!("{from} ORDER BY id"), columns).await
    }

    async fn rows_of(&mut self, from: &str, columns: &str) -> anyhow::Result<Vec<SqliteRow>> {
        let query = sqlx::AssertSqlSafe(format!("SELECT {columns} FROM {from}"));
        let rows = sqlx::query(query).fetch_all(&mut self.from).await;
        rows.context("not a database of headscale 0.29")
    }

    fn note(&mut self, what: &str, id: i64, outcome: anyhow::Result<()>) {
        if let Err(why) = outcome {
            self.remarks.push(left_out(what, id, &why));
        }
    }
}

fn left_out(what: &str, id: i64, why: &anyhow::Error) -> String {
    format!("left out: {what} {id}: {why:#}")
}

fn user(row: &SqliteRow) -> anyhow::Result<User> {
    let text = |name| Ok::<_, anyhow::Error>(optional(row, name)?.unwrap_or_default());
    let (name, email) = (text("name")?, text("email")?);
    let name = if name.is_empty() { email.clone() } else { name };
    Ok(User {
        id: UserId(row.try_get("id")?),
        name,
        display_name: text("display_name")?,
        email,
        picture_url: text("profile_pic_url")?,
        created: time(row, "created_at")?.unwrap_or_else(now),
        identity: optional(row, "provider_identifier")?
            .filter(|text| !text.is_empty())
            .map(|text| Identity::of_headscale(&text)),
        groups: Vec::new(),
        is_owner: false,
    })
}

fn pre_auth_key(row: &SqliteRow) -> anyhow::Result<PreAuthKey> {
    let prefix = optional(row, "prefix")?.filter(|prefix| !prefix.is_empty());
    let (prefix, hash) = match prefix {
        Some(prefix) => (prefix, bcrypt(row)?),
        // Those of before 0.28 are kept as they are.
        None => {
            let text = Zeroizing::new(optional(row, "key")?.unwrap_or_default());
            let parts = secret::read(&text).context("it is no key")?;
            (parts.prefix.to_owned(), Hash::of(parts.secret))
        }
    };
    let is = |name| Ok::<_, anyhow::Error>(row.try_get::<i64, _>(name)? != 0);
    Ok(PreAuthKey {
        id: KeyId(row.try_get("id")?),
        user: row.try_get::<Option<i64>, _>("user_id")?.map(UserId),
        prefix,
        hash,
        reusable: is("reusable")?,
        ephemeral: is("ephemeral")?,
        used: is("used")?,
        expires: time(row, "expiration")?,
        tags: json::<Option<_>>(row, "tags")?.unwrap_or_default(),
        created: time(row, "created_at")?.unwrap_or_else(now),
    })
}

fn api_key(row: &SqliteRow) -> anyhow::Result<ApiKey> {
    Ok(ApiKey {
        id: ApiKeyId(row.try_get("id")?),
        prefix: optional(row, "prefix")?.context("it has no prefix")?,
        hash: bcrypt(row)?,
        expires: time(row, "expiration")?,
        created: time(row, "created_at")?.unwrap_or_else(now),
    })
}

fn bcrypt(row: &SqliteRow) -> anyhow::Result<Hash> {
    let hash = optional(row, "hash")?.unwrap_or_default();
    Hash::of_bcrypt(&hash).context("its hash is none of bcrypt's")
}

fn node(row: &SqliteRow) -> anyhow::Result<Node> {
    let text = |name| Ok::<_, anyhow::Error>(optional(row, name)?.unwrap_or_default());
    let hostinfo = json::<Option<Hostinfo>>(row, "host_info")?.unwrap_or_default().bounded();
    let name = text("given_name")?;
    let disco = text("disco_key")?;
    let disco =
        if disco.is_empty() { Default::default() } else { disco.parse().context("disco_key")? };
    Ok(Node {
        id: NodeId(row.try_get("id")?),
        machine: text("machine_key")?.parse().context("machine_key")?,
        key: text("node_key")?.parse().context("node_key")?,
        disco,
        user: row.try_get::<Option<i64>, _>("user_id")?.map(UserId),
        tags: json::<Option<_>>(row, "tags")?.unwrap_or_default(),
        renamed: coordinator::label(&hostinfo.hostname) != name,
        name,
        // Whoever asks for the addresses sets them.
        v4: std::net::Ipv4Addr::UNSPECIFIED,
        v6: std::net::Ipv6Addr::UNSPECIFIED,
        endpoints: json::<Option<_>>(row, "endpoints")?.unwrap_or_default(),
        home: hostinfo.net_info.home,
        version: 0,
        hostinfo,
        ephemeral: false,
        auth_key: row.try_get::<Option<i64>, _>("auth_key_id")?.map(KeyId),
        method: match &*text("register_method")? {
            "cli" => RegisterMethod::Cli,
            _ => RegisterMethod::AuthKey,
        },
        expires: time(row, "expiry")?,
        created: time(row, "created_at")?.unwrap_or_else(now),
        rekeyed: None,
        last_seen: time(row, "last_seen")?,
        approved: json::<Option<_>>(row, "approved_routes")?.unwrap_or_default(),
        primaries: Vec::new(),
        lock_key: String::new(),
        signature: String::new(),
    })
}

fn optional(row: &SqliteRow, name: &str) -> anyhow::Result<Option<String>> {
    Ok(row.try_get(name)?)
}

/// What a column has in JSON, where it has something.
fn json<T: DeserializeOwned + Default>(row: &SqliteRow, name: &'static str) -> anyhow::Result<T> {
    match optional(row, name)? {
        Some(text) if !text.is_empty() => serde_json::from_str(&text).context(name),
        _ => Ok(T::default()),
    }
}

fn time(row: &SqliteRow, name: &'static str) -> anyhow::Result<Option<Time>> {
    let Some(text) = optional(row, name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    // Go's zero time is none.
    if text.starts_with("0001-01-01") {
        return Ok(None);
    }
    as_time(&text).map(Some).with_context(|| format!("{name}: {text:?} is no time"))
}

/// A time as Go's drivers for SQLite write it: `2026-11-23 22:00:00.123+00:00`, or with `+0000 UTC`.
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
    fn times_are_read_as_drivers_write_them() {
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
