//! The tables of a store, as they became what they are: step by step, each once, on either engine.

use anyhow::Context;
use sqlx::{PgConnection, PgPool, Row, SqliteConnection, SqlitePool};

use super::Scope;

/// What each version of the schema adds to the one before it. A step that was released is never
/// changed.
const STEPS: [&[&str]; 2] = [
    &[
        // A store of before versions were written down has these.
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
        // Which nodes have a stream of which server.
        "CREATE TABLE lease (
            network BIGINT NOT NULL, id BIGINT NOT NULL, beat BIGINT NOT NULL,
            change BIGINT NOT NULL, nodes TEXT NOT NULL, PRIMARY KEY (network, id))",
        // The key that clients know the network by.
        "ALTER TABLE network ADD COLUMN noise TEXT NOT NULL DEFAULT ''",
    ],
];

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)";
const NEWEST: &str = "SELECT COALESCE(MAX(version), 0) FROM schema_version";
const NEXT: &str = "INSERT INTO schema_version (version) VALUES ($1)";
/// There is a network from when a server is told of it on.
const FIRST: &str = "INSERT INTO network (id, version) VALUES ($1, 0) ON CONFLICT (id) DO NOTHING";
/// What writers leave behind that wrote nothing for so many versions. None waits for an answer then.
const OLD_WRITERS: &str = "DELETE FROM writer WHERE network = $1 AND version < (
        SELECT version FROM network WHERE id = $1) - 100000";
/// Servers that make tables at the same time come one after another.
const LOCK: i64 = 0x6c69_6e65_7261_7465;

/// Brings a file of SQLite to the newest version, all at once or not at all.
///
/// # Errors
/// It is newer than this program, or cannot be written.
pub async fn migrate_sqlite(pool: &SqlitePool, scope: Scope) -> anyhow::Result<()> {
    sqlx::query(VERSIONS).execute(pool).await.context("the store's version")?;
    // Another process that does the same has to come first or last.
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

/// The same of a database of PostgreSQL. One that has it is only read: it may take no changes now.
///
/// # Errors
/// As [`migrate_sqlite`].
pub async fn migrate_postgres(pool: &PgPool, scope: Scope) -> anyhow::Result<()> {
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

/// The key that clients know the network by: this, if there is none yet.
pub async fn claim(pool: &PgPool, scope: Scope, key: &str) -> anyhow::Result<String> {
    let mut transaction = pool.begin().await?;
    let kept = async |transaction: &mut PgConnection| -> sqlx::Result<String> {
        let kept = sqlx::query("SELECT noise FROM network WHERE id = $1").persistent(false);
        kept.bind(scope.network).fetch_one(transaction).await?.try_get(0)
    };
    let mut own = kept(&mut transaction).await?;
    if own.is_empty() {
        let claim = "UPDATE network SET noise = $2 WHERE id = $1 AND noise = ''";
        let claim = sqlx::query(claim).persistent(false).bind(scope.network).bind(key);
        claim.execute(&mut *transaction).await?;
        let old = sqlx::query(OLD_WRITERS).persistent(false).bind(scope.network);
        old.execute(&mut *transaction).await?;
        own = kept(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(own)
}

/// The version that a file has.
///
/// # Errors
/// This program does not know it.
pub async fn check(store: &mut SqliteConnection) -> anyhow::Result<usize> {
    known(sqlx::query(NEWEST).fetch_one(store).await?.try_get(0)?)
}

async fn check_postgres(store: &mut PgConnection) -> anyhow::Result<usize> {
    known(sqlx::query(NEWEST).persistent(false).fetch_one(store).await?.try_get(0)?)
}

fn known(version: i64) -> anyhow::Result<usize> {
    let known = usize::try_from(version).ok().filter(|version| *version <= STEPS.len());
    known.with_context(|| {
        format!(
            "the store has version {version}, and this linerate-server knows those up to {}: \
             use a newer one",
            STEPS.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::store::{Database, Shared, Store};

    async fn close(mut store: Store) {
        Shared::close(&mut store).await;
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
        close(Store::open(&Database::File(file.clone())).await.unwrap()).await;
        raw(&file, &["INSERT INTO schema_version (version) VALUES (3)"]).await;
        let Err(error) = Store::open(&Database::File(file.clone())).await else {
            panic!("it is opened")
        };
        let error = format!("{error:#}");
        assert!(error.contains("version 3") && error.contains("newer"), "{error}");
    }

    #[tokio::test]
    async fn a_store_of_before_there_were_versions_is_one_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let old = [STEPS[0][0], STEPS[0][1], "INSERT INTO network VALUES (1, 1)"];
        raw(&file, &old).await;
        raw(&file, &["INSERT INTO object VALUES (1, 'user', 7, 1, 0, '{}')"]).await;
        for _ in 0..2 {
            let mut store = Store::open(&Database::File(file.clone())).await.unwrap();
            assert_eq!(store.load().await.unwrap().objects[0].id, 7);
            close(store).await;
        }
    }
}
