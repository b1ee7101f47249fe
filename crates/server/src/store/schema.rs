//! Tables of a store, with migrations that run once each, for both engines.

use anyhow::Context;
use sqlx::{PgConnection, PgPool, Row, SqliteConnection, SqlitePool};

use super::Scope;

/// Statements of each schema version. A released version is never changed.
const STEPS: [&[&str]; 2] = [
    &[
        // Stores without a schema version may have these tables.
        "CREATE TABLE IF NOT EXISTS network (
            id BIGINT PRIMARY KEY, version BIGINT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS object (
            network BIGINT NOT NULL, kind TEXT NOT NULL, id BIGINT NOT NULL,
            version BIGINT NOT NULL, dead BOOLEAN NOT NULL, body TEXT NOT NULL,
            PRIMARY KEY (network, kind, id))",
        "CREATE INDEX IF NOT EXISTS object_version ON object (network, version)",
    ],
    &[
        // The last version that each server wrote.
        "CREATE TABLE writer (
            network BIGINT NOT NULL, id BIGINT NOT NULL, version BIGINT NOT NULL,
            PRIMARY KEY (network, id))",
        // Nodes that are connected to each server.
        "CREATE TABLE lease (
            network BIGINT NOT NULL, id BIGINT NOT NULL, beat BIGINT NOT NULL,
            change BIGINT NOT NULL, nodes TEXT NOT NULL, PRIMARY KEY (network, id))",
        // The network's Noise key.
        "ALTER TABLE network ADD COLUMN noise TEXT NOT NULL DEFAULT ''",
    ],
];

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)";
const NEWEST: &str = "SELECT COALESCE(MAX(version), 0) FROM schema_version";
const NEXT: &str = "INSERT INTO schema_version (version) VALUES ($1)";
/// Creates the row of a network.
const FIRST: &str = "INSERT INTO network (id, version) VALUES ($1, 0) ON CONFLICT (id) DO NOTHING";
/// Removes writers without a write in this many versions. None of them still waits for an answer.
const OLD_WRITERS: &str = "DELETE FROM writer WHERE network = $1 AND version < (
        SELECT version FROM network WHERE id = $1) - 100000";
/// Advisory lock for servers that migrate at the same time.
const LOCK: i64 = 0x6c69_6e65_7261_7465;

/// Migrates an SQLite file to the newest version, in one transaction.
///
/// # Errors
/// It is newer than this program, or cannot be written.
pub(super) async fn migrate_sqlite(pool: &SqlitePool, scope: Scope) -> anyhow::Result<()> {
    sqlx::query(VERSIONS).execute(pool).await.context("the store's version")?;
    // Serializes concurrent migrations by several processes.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let version = check(&mut transaction).await?;
    for (step, number) in STEPS.iter().zip(1_i64..).skip(version) {
        for statement in *step {
            let made = sqlx::query(*statement).execute(&mut *transaction).await;
            made.with_context(|| format!("version {number} of the store"))?;
        }
        sqlx::query(NEXT).bind(number).execute(&mut *transaction).await?;
    }
    sqlx::query(FIRST).bind(scope.network).execute(&mut *transaction).await?;
    sqlx::query(OLD_WRITERS).bind(scope.network).execute(&mut *transaction).await?;
    transaction.commit().await.context("the store's version")
}

/// The same for PostgreSQL. A database with the newest version is only read, because it may be
/// read-only.
///
/// # Errors
/// As [`migrate_sqlite`].
pub(super) async fn migrate_postgres(pool: &PgPool, scope: Scope) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    let there = sqlx::query("SELECT to_regclass('schema_version') IS NOT NULL").persistent(false);
    let is_there: bool = there.fetch_one(&mut *transaction).await?.try_get(0)?;
    if is_there
        && check_postgres(&mut transaction).await? == STEPS.len()
        && has_network(&mut transaction, scope).await?
    {
        return Ok(transaction.commit().await?);
    }
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").persistent(false).bind(LOCK);
    lock.execute(&mut *transaction).await?;
    sqlx::raw_sql(VERSIONS).execute(&mut *transaction).await.context("the store's version")?;
    let version = check_postgres(&mut transaction).await?;
    for (step, number) in STEPS.iter().zip(1_i64..).skip(version) {
        for statement in *step {
            let made = sqlx::raw_sql(*statement).execute(&mut *transaction).await;
            made.with_context(|| format!("version {number} of the store"))?;
        }
        let next = sqlx::query(NEXT).persistent(false).bind(number);
        next.execute(&mut *transaction).await?;
    }
    sqlx::query(FIRST).persistent(false).bind(scope.network).execute(&mut *transaction).await?;
    transaction.commit().await.context("the store's version")
}

async fn has_network(store: &mut PgConnection, scope: Scope) -> sqlx::Result<bool> {
    let there = sqlx::query("SELECT 1 FROM network WHERE id = $1").persistent(false);
    Ok(there.bind(scope.network).fetch_optional(store).await?.is_some())
}

/// The network's Noise key, which is set to `key` if it is empty.
pub(super) async fn claim(pool: &PgPool, scope: Scope, key: &str) -> anyhow::Result<String> {
    let mut transaction = pool.begin().await?;
    let stored = async |transaction: &mut PgConnection| -> sqlx::Result<String> {
        let stored = sqlx::query("SELECT noise FROM network WHERE id = $1").persistent(false);
        stored.bind(scope.network).fetch_one(transaction).await?.try_get(0)
    };
    let mut own = stored(&mut transaction).await?;
    if own.is_empty() {
        let claim = "UPDATE network SET noise = $2 WHERE id = $1 AND noise = ''";
        let claim = sqlx::query(claim).persistent(false).bind(scope.network).bind(key);
        claim.execute(&mut *transaction).await?;
        let old = sqlx::query(OLD_WRITERS).persistent(false).bind(scope.network);
        old.execute(&mut *transaction).await?;
        own = stored(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(own)
}

/// The schema version of a file.
///
/// # Errors
/// It is unknown to this program.
pub(super) async fn check(store: &mut SqliteConnection) -> anyhow::Result<usize> {
    check_version(sqlx::query(NEWEST).fetch_one(store).await?.try_get(0)?)
}

async fn check_postgres(store: &mut PgConnection) -> anyhow::Result<usize> {
    check_version(sqlx::query(NEWEST).persistent(false).fetch_one(store).await?.try_get(0)?)
}

fn check_version(version: i64) -> anyhow::Result<usize> {
    let check_version = usize::try_from(version).ok().filter(|version| *version <= STEPS.len());
    check_version.with_context(|| {
        format!(
            "the store has version {version}, but this linerate-server supports versions up to {}: \
             use a newer version",
            STEPS.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::store::{Database, DatabaseLocation, Store};

    async fn close(mut store: Store) {
        Database::close(&mut store).await;
    }

    async fn raw(file: &std::path::Path, statements: &[&'static str]) {
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        for statement in statements {
            sqlx::query(*statement).execute(&pool).await.unwrap();
        }
        pool.close().await;
    }

    #[tokio::test]
    async fn a_store_of_a_newer_program_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        close(Store::open(&DatabaseLocation::File(file.clone())).await.unwrap()).await;
        raw(&file, &["INSERT INTO schema_version (version) VALUES (3)"]).await;
        let Err(error) = Store::open(&DatabaseLocation::File(file.clone())).await else {
            panic!("it is opened")
        };
        let error = format!("{error:#}");
        assert!(error.contains("version 3") && error.contains("newer"), "{error}");
    }

    #[tokio::test]
    async fn a_store_without_a_schema_version_is_migrated_from_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let old = [STEPS[0][0], STEPS[0][1], "INSERT INTO network VALUES (1, 1)"];
        raw(&file, &old).await;
        raw(&file, &["INSERT INTO object VALUES (1, 'user', 7, 1, 0, '{}')"]).await;
        for _ in 0..2 {
            let mut store = Store::open(&DatabaseLocation::File(file.clone())).await.unwrap();
            assert_eq!(store.load().await.unwrap().objects[0].id, 7);
            close(store).await;
        }
    }
}
