//! The database of headscale, read and never written.
//!
//! ```text
//!   schema: all known? ──► rows ──► objects ──► coordinator::Import ──► new objects
//! ```

mod rows;
mod schema;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use coordinator::{
    Import as Network, ImportOutcome,
    object::{Kind, Object, Policy, PolicyId, Stored, UserId},
};
use sqlx::{ConnectOptions, Connection, Row as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tailnet::keys::MachineKey;

use self::{rows::Row, schema::Schema};
use super::{
    Import, Incoming,
    tally::{Outcome, Tally},
};
use crate::{
    clock::now,
    configuration::Configuration,
    files::{self, known_key},
};

/// Its files beside the database, as its packages set it up.
const NOISE: &str = "noise_private.key";
const RELAY: &str = "derp_server_private.key";

/// Reads all objects that the network lacks. It has these from an earlier import.
///
/// # Errors
/// It is not such a database, its keys are missing, or unknown columns may take rights away.
pub async fn read(
    asked: &Import,
    configuration: &Configuration,
    there: &[Stored],
) -> anyhow::Result<Incoming> {
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
    if !there.is_empty() {
        check_same(&configuration.state_dir, &noise)?;
    }
    let options = SqliteConnectOptions::new().filename(&asked.file).read_only(true);
    let mut from = options.connect().await?;
    let schema = Schema::read(&mut from).await?;
    let mut remarks: Vec<String> = Vec::new();
    for sign in schema.newer() {
        remarks.push(format!(
            "warning: the database is of a newer headscale than 0.29 ({sign}): what it means by known \
             names may have changed"
        ));
    }
    let mut tally = Tally::default();
    for unknown in schema.unknown(&mut from).await? {
        ensure!(
            asked.ignore.contains(&unknown.name),
            "{} has values in {} rows, and this linerate-server does not know what they mean: they may \
             take rights away; --ignore {} imports without them",
            unknown.name,
            unknown.rows,
            unknown.name
        );
        tally.leave_out_others(usize::try_from(unknown.rows).unwrap_or_default());
        remarks.push(format!("left out: {} of {} rows", unknown.name, unknown.rows));
    }
    let prefixes = configuration.network_settings().prefixes;
    let to = Network::onto(prefixes, there)?;
    let keys = BTreeMap::new();
    let mut reader = Reader { from, schema, to, tally, remarks, keys };
    reader.users().await?;
    reader.keys().await?;
    reader.api_keys().await?;
    reader.oauth_clients().await?;
    reader.nodes().await?;
    let saved = reader.policy().await?;
    reader.numbers().await?;
    let Reader { from, to, mut tally, mut remarks, .. } = reader;
    from.close().await?;
    let (mut objects, skipped) = to.finish();
    for (id, why) in skipped {
        tally.take_back(Kind::Node);
        remarks.push(left_out("node", id.0, &why.into()));
    }
    if there.is_empty() {
        let policy = policy(asked, saved)?;
        tally.set_policy(if policy.is_some() { "imported" } else { "none" });
        objects.extend(policy.map(|policy| policy.stored()));
    } else {
        tally.set_policy("stays as it is");
    }
    Ok(Incoming { objects, noise, relay, remarks, tally, completes: true })
}

/// A second import completes the first, and nothing else: the network is known by the same key.
fn check_same(folder: &Path, noise: &MachineKey) -> anyhow::Result<()> {
    let own = known_key(&folder.join(files::NOISE))?;
    let is_same = own.is_some_and(|own| own.public() == noise.public());
    ensure!(
        is_same,
        "{} has another network already, and an import goes into none",
        folder.display()
    );
    Ok(())
}

/// The policy that is in force from the first moment: a network is not opened by being moved.
fn policy(asked: &Import, saved: Option<String>) -> anyhow::Result<Option<Policy>> {
    let named =
        |file: &PathBuf| fs::read_to_string(file).with_context(|| file.display().to_string());
    let text = match (asked.policy.as_ref().map(named).transpose()?, saved) {
        (Some(text), _) | (None, Some(text)) => text,
        (None, None) if asked.no_policy => return Ok(None),
        (None, None) => bail!(
            "the database has no policy, because headscale's is in a file unless `policy.mode` is \
             \"database\": name the file with --policy FILE, or say --no-policy if every node may reach \
             every other"
        ),
    };
    let policy = ::policy::Policy::parse(&text).map_err(|refusal| {
        anyhow!("the policy is refused; name another with --policy\n{refusal}")
    })?;
    match policy.is_open() {
        false if asked.no_policy => {
            bail!("the database has a policy: leave --no-policy out, or name another with --policy")
        }
        true if !asked.no_policy => bail!(
            "the policy has neither `acls` nor `grants`, so that every node may reach every other: name \
             another with --policy FILE, or say --no-policy if that is wanted"
        ),
        _ => {}
    }
    Ok(Some(Policy { id: PolicyId(1), text, created: now() }))
}

struct Reader {
    from: SqliteConnection,
    schema: Schema,
    to: Network,
    tally: Tally,
    remarks: Vec<String>,
    keys: BTreeMap<i64, Maker>,
}

/// A pre-auth key, imported or not, as far as it decides about its nodes.
#[derive(Clone, Copy)]
struct Maker {
    user: Option<UserId>,
    is_ephemeral: bool,
}

impl Reader {
    async fn users(&mut self) -> anyhow::Result<()> {
        for mut row in self.rows("users", rows::USERS, "id").await? {
            let outcome = rows::user(&mut row).and_then(|user| Ok(self.to.user(user)?));
            self.note(Kind::User, row, outcome);
        }
        Ok(())
    }

    async fn keys(&mut self) -> anyhow::Result<()> {
        // Later versions have the tags in a column, and may have an old table that is not true any more.
        let tags = match self.schema.has("pre_auth_keys", "tags") {
            true => BTreeMap::new(),
            false => self.lists("pre_auth_key_acl_tags", ["pre_auth_key_id", "tag"]).await?,
        };
        for mut row in self.rows("pre_auth_keys", rows::KEYS, "id").await? {
            let more = tags.get(&row.id()).map_or(&[][..], Vec::as_slice);
            let maker = Maker {
                user: row.number("user_id").ok().flatten().map(UserId),
                is_ephemeral: row.is_ephemeral(),
            };
            self.keys.insert(row.id(), maker);
            let outcome =
                rows::pre_auth_key(&mut row, more).and_then(|key| Ok(self.to.key(key)?));
            self.note(Kind::PreAuthKey, row, outcome);
        }
        Ok(())
    }

    async fn api_keys(&mut self) -> anyhow::Result<()> {
        for mut row in self.rows("api_keys", rows::API_KEYS, "id").await? {
            let outcome = rows::api_key(&mut row).and_then(|key| Ok(self.to.api_key(key)?));
            self.note(Kind::ApiKey, row, outcome);
        }
        Ok(())
    }

    /// Clients of OAuth, which a network here does not have. Their tokens live for an hour.
    async fn oauth_clients(&mut self) -> anyhow::Result<()> {
        for row in self.rows("oauth_clients", &["client_id", "revoked"], "id").await? {
            if row.text("revoked").is_empty() {
                self.tally.leave_out_others(1);
                self.remarks.push(format!("left out: OAuth client {}", row.text("client_id")));
            }
        }
        Ok(())
    }

    async fn nodes(&mut self) -> anyhow::Result<()> {
        let routes = match self.schema.has("nodes", "approved_routes") {
            true => BTreeMap::new(),
            false => self.lists("routes", ["node_id", "prefix"]).await?,
        };
        for mut row in self.rows("nodes", rows::NODES, "id").await? {
            let more = routes.get(&row.id()).map_or(&[][..], Vec::as_slice);
            let outcome = rows::node(&mut row, more).and_then(|(mut node, v4, v6)| {
                let maker = node.auth_key.and_then(|key| self.keys.get(&key.0));
                node.ephemeral = maker.is_some_and(|maker| maker.is_ephemeral);
                // headscale 0.29.0 forgot the users of some nodes; later versions find them so, too.
                if let Some(user) = maker.and_then(|maker| maker.user)
                    && node.user.is_none()
                    && node.tags.is_empty()
                {
                    row.note(format!("it is of user {user}, by whose key it joined"));
                    node.user = Some(user);
                }
                if !self.schema.has_requested_tags() && !node.hostinfo.tags.is_empty() {
                    // As if it had not asked: at its next registration the policy decides.
                    let asked = std::mem::take(&mut node.hostinfo.tags).join(", ");
                    row.note(format!("it gets {asked} by the policy at its next registration"));
                }
                Ok(self.to.node(node, v4, v6)?)
            });
            self.note(Kind::Node, row, outcome);
        }
        Ok(())
    }

    async fn policy(&mut self) -> anyhow::Result<Option<String>> {
        let rows = self.rows("policies", &["data", "deleted_at"], "id DESC").await?;
        let newest = rows.into_iter().next().map(|row| row.text("data").to_owned());
        Ok(newest.filter(|text| !text.trim().is_empty()))
    }

    /// The last numbers that were given, also to what is gone.
    async fn numbers(&mut self) -> anyhow::Result<()> {
        for row in schema::rows(&mut self.from, "SELECT name, seq FROM sqlite_sequence").await? {
            let (name, last): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let kind = match &*name {
                "users" => Kind::User,
                "nodes" => Kind::Node,
                "pre_auth_keys" => Kind::PreAuthKey,
                "api_keys" => Kind::ApiKey,
                _ => continue,
            };
            self.to.reserve_numbers(kind, last);
        }
        Ok(())
    }

    /// The rows of a table that are not deleted.
    async fn rows(
        &mut self,
        table: &str,
        columns: &[&'static str],
        order: &str,
    ) -> anyhow::Result<Vec<Row>> {
        if !self.schema.has(table, "id") {
            return Ok(Vec::new());
        }
        let columns_of = self.schema.columns(table, columns);
        let query = format!("SELECT {columns_of} FROM {table} ORDER BY {table}.{order}");
        let rows = schema::rows(&mut self.from, &query).await?;
        let rows = rows.iter().map(|row| Row::of(row, columns));
        let is_kept = |row: &Row| row.text("deleted_at").is_empty();
        Ok(rows.collect::<anyhow::Result<Vec<_>>>()?.into_iter().filter(is_kept).collect())
    }

    /// Texts of a table of old versions, by the number of their owner. Disabled routes are left out.
    async fn lists(
        &mut self,
        table: &str,
        [owner, text]: [&'static str; 2],
    ) -> anyhow::Result<BTreeMap<i64, Vec<String>>> {
        let mut lists: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        let has_switch = self.schema.has(table, "enabled");
        for row in self.rows(table, &[owner, text, "enabled", "deleted_at"], "id").await? {
            if let Some(number) = row.number(owner)?
                && (!has_switch || row.flag("enabled") == Some(true))
            {
                lists.entry(number).or_default().push(row.text(text).to_owned());
            }
        }
        Ok(lists)
    }

    fn note(&mut self, kind: Kind, row: Row, outcome: anyhow::Result<ImportOutcome>) {
        let (id, name) = (row.id(), name_of(kind));
        let outcome = match outcome {
            Ok(ImportOutcome::AlreadyPresent) => Outcome::There,
            Ok(ImportOutcome::New(changed)) => {
                let changed = changed.iter().map(ToString::to_string);
                let notes = changed.chain(row.into_notes());
                self.remarks.extend(notes.map(|note| format!("note: {name} {id}: {note}")));
                Outcome::Imported
            }
            Err(why) => {
                self.to.leave_out(kind, id);
                self.remarks.push(left_out(name, id, &why));
                Outcome::LeftOut
            }
        };
        self.tally.add(kind, outcome);
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::User => "user",
        Kind::PreAuthKey => "pre-auth key",
        Kind::ApiKey => "API key",
        _ => "node",
    }
}

fn left_out(what: &str, id: i64, why: &anyhow::Error) -> String {
    format!("left out: {what} {id}: {why:#}")
}
