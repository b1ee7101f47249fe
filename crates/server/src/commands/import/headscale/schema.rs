//! Schemas of headscale 0.23 to 0.29 and of the development branch after them
//! (`hscontrol/db/schema.sql`, and the migrations in `db.go`). An unknown column or table may
//! restrict rights, such as a column that suspends machines. If it has values, the import fails
//! unless the administrator ignores it by name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::rows;

/// The newest version with a known schema.
const NEWEST: (u32, u32) = (0, 29);

/// Migrations of these versions, and the mark of a database that was created without migrations.
const MIGRATIONS: [&str; 30] = [
    "202312101416",
    "202312101430",
    "202402151347",
    "2024041121742",
    "202406021630",
    "202407191627",
    "202408181235",
    "202409271400",
    "202501221827",
    "202501311657",
    "202502070949",
    "202502131714",
    "202502171819",
    "202505091439",
    "202505141324",
    "202507021200",
    "202510311551",
    "202511101554-drop-old-idx",
    "202511011637-preauthkey-bcrypt",
    "202511122344-remove-newline-index",
    "202511131445-node-forced-tags-to-tags",
    "202601121700-migrate-hostinfo-request-tags",
    "202602201200-clear-tagged-node-user-id",
    "202605221435-clear-zero-time-node-expiry",
    "202606181200-recover-null-tags-node-user-id",
    "202606191500-api-key-user-id",
    "202606191501-pre-auth-key-description",
    "202606201200-pre-auth-key-revoked",
    "202606211200-oauth-clients-and-tokens",
    "SCHEMA_INIT",
];

/// Tables that are read: the columns that become objects, and all other columns of any version.
const TABLES: [(&str, &[&str], &[&str]); 9] = [
    ("users", rows::USERS, &["provider", "updated_at"]),
    ("pre_auth_keys", rows::KEYS, &["description"]),
    ("pre_auth_key_acl_tags", &[], &["id", "pre_auth_key_id", "tag"]),
    ("api_keys", rows::API_KEYS, &["user_id", "last_seen"]),
    ("nodes", rows::NODES, &["hostinfo", "updated_at", "ip_addresses", "last_successful_update"]),
    (
        "routes",
        &[],
        &[
            "id",
            "node_id",
            "machine_id",
            "prefix",
            "advertised",
            "enabled",
            "is_primary",
            "created_at",
            "updated_at",
            "deleted_at",
        ],
    ),
    ("policies", &[], &["id", "data", "created_at", "updated_at", "deleted_at"]),
    (
        "oauth_clients",
        &[],
        &[
            "id",
            "client_id",
            "secret_hash",
            "scopes",
            "tags",
            "description",
            "user_id",
            "created_at",
            "revoked",
        ],
    ),
    (
        "oauth_access_tokens",
        &[],
        &["id", "prefix", "hash", "client_id", "scopes", "tags", "expiration", "created_at"],
    ),
];

/// Tables without content of a network: bookkeeping, and remains of old migrations.
const IDLE_TABLES: [&str; 8] = [
    "migrations",
    "database_versions",
    "namespaces",
    "machines",
    "shared_machines",
    "kvs",
    "_litestream_seq",
    "_litestream_lock",
];

/// Tables and columns of a database.
pub(super) struct Schema {
    tables: BTreeMap<String, BTreeSet<String>>,
    migrations: BTreeSet<String>,
    version: Option<String>,
}

/// Rows of an unknown column or table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    /// `table` or `table.column`.
    pub name: String,
    /// Number of rows with a value.
    pub rows: i64,
}

impl Schema {
    /// Reads the schema of a database.
    ///
    /// # Errors
    /// It is not a database of headscale 0.23 or later.
    pub(super) async fn read(from: &mut SqliteConnection) -> anyhow::Result<Self> {
        let mut schema =
            Self { tables: BTreeMap::new(), migrations: BTreeSet::new(), version: None };
        let columns = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c
                       WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'";
        for row in rows(from, columns).await? {
            let (table, column): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            schema.tables.entry(table).or_default().insert(column);
        }
        let is_headscale = ["users", "nodes", "pre_auth_keys"]
            .iter()
            .all(|table| schema.tables.contains_key(*table));
        ensure!(is_headscale, "not a database of headscale 0.23 or later");
        if schema.tables.contains_key("migrations") {
            for row in rows(from, "SELECT id FROM migrations WHERE id IS NOT NULL").await? {
                schema.migrations.insert(row.try_get(0)?);
            }
        }
        if schema.tables.contains_key("database_versions") {
            let newest = "SELECT version FROM database_versions ORDER BY id LIMIT 1";
            schema.version =
                rows(from, newest).await?.first().map(|row| row.try_get(0)).transpose()?;
        }
        Ok(schema)
    }

    /// Whether a table has this column.
    pub(super) fn has(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// A select list of columns as strings. Columns that this version lacks are null.
    pub(super) fn columns(&self, table: &str, names: &[&str]) -> String {
        let column = |name: &&str| match self.has(table, name) {
            true => format!("CAST({name} AS TEXT) AS {name}"),
            false => format!("NULL AS {name}"),
        };
        names.iter().map(column).collect::<Vec<_>>().join(", ")
    }

    /// Whether the column of tags contains the requested tags that the policy permits. Versions
    /// before 0.28 computed them at each start, and named the column differently.
    pub(super) fn has_requested_tags(&self) -> bool {
        !self.has("nodes", "forced_tags")
    }

    /// Signs of a newer headscale: its version, and unknown migrations.
    pub(super) fn newer(&self) -> Vec<String> {
        let version = self.version.as_deref().filter(|version| is_newer(version));
        let is_known = |id: &&String| MIGRATIONS.contains(&id.as_str());
        let unknown = self.migrations.iter().filter(|id| !is_known(id));
        let version = version.map(|version| format!("version {version}"));
        version.into_iter().chain(unknown.map(|id| format!("migration {id}"))).collect()
    }

    /// Unknown columns and tables that have values.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn unknown(
        &self,
        from: &mut SqliteConnection,
    ) -> anyhow::Result<Vec<Unknown>> {
        let mut unknown = Vec::new();
        for (table, columns) in &self.tables {
            let known = TABLES.iter().find(|(name, ..)| name == table);
            let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
            let mut queries = Vec::new();
            match known {
                None if IDLE_TABLES.contains(&table.as_str()) => {}
                None => queries.push((table.clone(), "1".to_owned())),
                Some((_, read, others)) => {
                    let is_known =
                        |column: &str| read.contains(&column) || others.contains(&column);
                    for column in columns.iter().filter(|column| !is_known(column)) {
                        let (name, column) = (format!("{table}.{column}"), quoted(column));
                        // Go's zero values in a database.
                        let empty = "('', '0', 'null', '[]', '{}', 'false')";
                        let has = format!("CAST({column} AS TEXT) NOT IN {empty}");
                        queries.push((name, format!("{column} IS NOT NULL AND {has}")));
                    }
                }
            }
            for (name, condition) in queries {
                let query = format!("SELECT count(*) FROM {} WHERE {condition}", quoted(table));
                let counted = rows(from, &query).await?;
                let rows = counted.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
                if rows > 0 {
                    unknown.push(Unknown { name, rows });
                }
            }
        }
        Ok(unknown)
    }
}

/// The rows of a query.
///
/// # Errors
/// The database cannot be read.
pub(super) async fn rows(
    from: &mut SqliteConnection,
    query: &str,
) -> anyhow::Result<Vec<SqliteRow>> {
    let query = sqlx::AssertSqlSafe(query.to_owned());
    sqlx::query(query).fetch_all(from).await.context("the database cannot be read")
}

/// Whether a version such as `v0.30.1-beta.2` is newer than [`NEWEST`]. Development builds have
/// other texts.
fn is_newer(version: &str) -> bool {
    let numbers = version.strip_prefix('v').unwrap_or(version);
    let mut numbers = numbers.split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) > NEWEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_after_the_newest_known_one_are_newer() {
        for version in ["v0.30.0", "0.31.1-beta.1", "1.0.0"] {
            assert!(is_newer(version), "{version}");
        }
        for version in ["v0.29.3", "0.23.0", "dev", "", "(devel)", "v0.0.0-20260101000000-abcdef"] {
            assert!(!is_newer(version), "{version}");
        }
    }
}
