//! The tables of a store, as they became what they are: step by step, each once.

use anyhow::Context;
use sqlx::{Row, SqliteConnection, SqlitePool};

/// What each version of the schema adds to the one before it. A step that was released is never
/// changed.
const STEPS: [&[&str]; 1] = [&[
    // A store of before versions were written down has these.
    "CREATE TABLE IF NOT EXISTS network (
        id BIGINT PRIMARY KEY, version BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS object (
        network BIGINT NOT NULL, kind TEXT NOT NULL, id BIGINT NOT NULL,
        version BIGINT NOT NULL, dead BOOLEAN NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (network, kind, id))",
    "CREATE INDEX IF NOT EXISTS object_version ON object (network, version)",
]];

/// Brings a store to the newest version, all at once or not at all.
///
/// # Errors
/// It is newer than this program, or cannot be written.
pub async fn migrate(pool: &SqlitePool) -> anyhow::Result<()> {
    let versions = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)";
    sqlx::query(versions).execute(pool).await.context("the store's version")?;
    // Another process that does the same has to come first or last.
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let version = check(&mut transaction).await?;
    for (step, number) in STEPS.iter().zip(1_i64..).skip(version) {
        for statement in *step {
            let made = sqlx::query(*statement).execute(&mut *transaction).await;
            made.with_context(|| format!("version {number} of the store"))?;
        }
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(number)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await.context("the store's version")
}

/// The version that a store has.
///
/// # Errors
/// This program does not know it.
pub async fn check(store: &mut SqliteConnection) -> anyhow::Result<usize> {
    let row = sqlx::query("SELECT COALESCE(MAX(version), 0) FROM schema_version");
    let version: i64 = row.fetch_one(store).await?.try_get(0)?;
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
    use crate::store::Store;

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
        Store::open(&file).await.unwrap().close().await;
        raw(&file, &["INSERT INTO schema_version (version) VALUES (2)"]).await;
        let Err(error) = Store::open(&file).await else { panic!("it is opened") };
        let error = format!("{error:#}");
        assert!(error.contains("version 2") && error.contains("newer"), "{error}");
    }

    #[tokio::test]
    async fn a_store_of_before_there_were_versions_is_one_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let old = [STEPS[0][0], STEPS[0][1], "INSERT INTO network VALUES (1, 1)"];
        raw(&file, &old).await;
        raw(&file, &["INSERT INTO object VALUES (1, 'user', 7, 1, 0, '{}')"]).await;
        for _ in 0..2 {
            let store = Store::open(&file).await.unwrap();
            assert_eq!(store.load().await.unwrap().objects[0].id, 7);
            store.close().await;
        }
    }
}
