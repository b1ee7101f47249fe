//! Reads headscale's database. It is never written.
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
    Import as NetworkImport, ImportOutcome,
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
    process::files::{self, read_key},
};

/// Names of its key files in the database's folder, as its packages create them.
const NOISE: &str = "noise_private.key";
const RELAY: &str = "derp_server_private.key";

/// Reads all objects that the network lacks. The network may have some from an earlier import.
///
/// # Errors
/// The file is not such a database, its keys are missing, or unknown columns may restrict rights.
pub(super) async fn read(
    arguments: &Import,
    configuration: &Configuration,
    there: &[Stored],
) -> anyhow::Result<Incoming> {
    let beside = |name: &str| arguments.file.with_file_name(name);
    let noise = arguments.noise_key.clone().unwrap_or_else(|| beside(NOISE));
    let noise = read_key(&noise)?.with_context(|| {
        format!(
            "{}: no such file: clients would not recognize this server without headscale's key. Name it \
             with --noise-key",
            noise.display()
        )
    })?;
    let relay = arguments.derp_key.clone();
    let relay = match &relay {
        Some(file) => {
            Some(read_key(file)?.with_context(|| format!("{}: no such file", file.display()))?)
        }
        None => read_key(&beside(RELAY))?,
    };
    if !there.is_empty() {
        check_same(&configuration.state_dir, &noise)?;
    }
    let options = SqliteConnectOptions::new().filename(&arguments.file).read_only(true);
    let mut from = options.connect().await?;
    let schema = Schema::read(&mut from).await?;
    let mut remarks: Vec<String> = Vec::new();
    for sign in schema.newer() {
        remarks.push(format!(
            "warning: the database is of a newer headscale than 0.29 ({sign}): the meaning of known names \
             may have changed"
        ));
    }
    let mut tally = Tally::default();
    for unknown in schema.unknown(&mut from).await? {
        ensure!(
            arguments.ignore.contains(&unknown.name),
            "{} has values in {} rows, and their meaning is unknown: they may restrict rights. \
             --ignore {} imports without them",
            unknown.name,
            unknown.rows,
            unknown.name
        );
        tally.leave_out_others(usize::try_from(unknown.rows).unwrap_or_default());
        remarks.push(format!("left out: {} of {} rows", unknown.name, unknown.rows));
    }
    let prefixes = configuration.network_settings().prefixes;
    let to = NetworkImport::onto(prefixes, there)?;
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
        let policy = policy(arguments, saved)?;
        tally.set_policy(if policy.is_some() { "imported" } else { "none" });
        objects.extend(policy.map(|policy| policy.stored()));
    } else {
        tally.set_policy("stays as it is");
    }
    Ok(Incoming { objects, noise, relay, remarks, tally, completes: true })
}

/// A second import can only complete the first one, so the network's key must be the same.
fn check_same(folder: &Path, noise: &MachineKey) -> anyhow::Result<()> {
    let own = read_key(&folder.join(files::NOISE))?;
    let is_same = own.is_some_and(|own| own.public() == noise.public());
    ensure!(
        is_same,
        "{} already contains another network: import into an empty one",
        folder.display()
    );
    Ok(())
}

/// The policy of the imported network. It applies from the start, so that the import does not open
/// the network.
fn policy(arguments: &Import, saved: Option<String>) -> anyhow::Result<Option<Policy>> {
    let named =
        |file: &PathBuf| fs::read_to_string(file).with_context(|| file.display().to_string());
    let text = match (arguments.policy.as_ref().map(named).transpose()?, saved) {
        (Some(text), _) | (None, Some(text)) => text,
        (None, None) if arguments.no_policy => return Ok(None),
        (None, None) => bail!(
            "the database has no policy: headscale's policy is in a file unless `policy.mode` is \
             \"database\". Name the file with --policy FILE, or use --no-policy if every node may reach \
             every other"
        ),
    };
    let policy = ::policy::Policy::parse(&text).map_err(|refusal| {
        anyhow!("the policy is invalid; name another one with --policy\n{refusal}")
    })?;
    match policy.is_open() {
        false if arguments.no_policy => {
            bail!(
                "the database has a policy: omit --no-policy, or name another policy with --policy"
            )
        }
        true if !arguments.no_policy => bail!(
            "the policy has neither `acls` nor `grants`, so that every node may reach every other: name \
             another policy with --policy FILE, or use --no-policy if this is intended"
        ),
        _ => {}
    }
    Ok(Some(Policy { id: PolicyId(1), text, created: now() }))
}

struct Reader {
    from: SqliteConnection,
    schema: Schema,
    to: NetworkImport,
    tally: Tally,
    remarks: Vec<String>,
    keys: BTreeMap<i64, Maker>,
}

/// The parts of a pre-auth key, imported or not, that apply to its nodes.
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
        // Later versions have the tags in a column, and may still have an outdated table.
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

    /// Counts OAuth clients, which do not exist in linerate. Their tokens live for an hour.
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
                // headscale 0.29.0 lost the users of some nodes. Later versions find
                // them in the same way.
                if let Some(user) = maker.and_then(|maker| maker.user)
                    && node.user.is_none()
                    && node.tags.is_empty()
                {
                    row.note(format!("it belongs to user {user}, the owner of its auth key"));
                    node.user = Some(user);
                }
                if !self.schema.has_requested_tags() && !node.hostinfo.tags.is_empty() {
                    // The policy decides about requested tags at the next
                    // registration.
                    let tags = std::mem::take(&mut node.hostinfo.tags).join(", ");
                    row.note(format!("the policy decides about {tags} at its next registration"));
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

    /// Reads the last assigned IDs, including those of deleted objects.
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

    /// The rows of a table, without deleted ones.
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
        let is_live = |row: &Row| row.text("deleted_at").is_empty();
        Ok(rows.collect::<anyhow::Result<Vec<_>>>()?.into_iter().filter(is_live).collect())
    }

    /// Strings from a table of old versions, by the ID of their owner. Disabled routes are
    /// ignored.
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
            Ok(ImportOutcome::AlreadyPresent) => Outcome::AlreadyPresent,
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
