//! Where a network is kept: every object is a row, and every change of some of them a transaction
//! that also moves the network's version. Whoever expected another version changed nothing.

mod backup;
mod schema;

use std::{path::Path, time::Duration};

use anyhow::Context;
use coordinator::{
    KEPT_AUDIT,
    object::{Kind, Stored},
};
use sqlx::{
    Row, SqlitePool,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
    },
};

pub use self::backup::Backup;

/// Another process may be about to finish a transaction.
const BUSY: Duration = Duration::from_secs(5);

/// The network that a server has, for as long as it has one.
const NETWORK: i64 = 1;

const EVERYTHING: &str =
    "SELECT kind, id, dead, body FROM object WHERE network = $1 ORDER BY kind, id";

/// Where a network is kept.
pub struct Store {
    pool: SqlitePool,
}

/// How an attempt to commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// This is the version now.
    At(i64),
    /// Somebody else has changed something.
    Conflict,
}

/// The network as it is kept.
pub struct Loaded {
    /// Its version.
    pub version: i64,
    /// All objects.
    pub objects: Vec<Stored>,
}

impl Store {
    /// Opens the file, which is made if there is none.
    ///
    /// # Errors
    /// The file cannot be opened or is none of a store's.
    pub async fn open(file: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // An acknowledged change outlives a power cut.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await;
        let pool = pool.with_context(|| format!("{}", file.display()))?;
        schema::migrate(&pool).await.with_context(|| format!("{}", file.display()))?;
        let begin = "INSERT INTO network (id, version) VALUES ($1, 0) ON CONFLICT (id) DO NOTHING";
        sqlx::query(begin).bind(NETWORK).execute(&pool).await.context("the store's network")?;
        Ok(Self { pool })
    }

    /// Everything.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn load(&self) -> anyhow::Result<Loaded> {
        self.tail(0).await
    }

    /// What was written after this version.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn tail(&self, since: i64) -> anyhow::Result<Loaded> {
        let mut transaction = self.pool.begin().await?;
        let version = sqlx::query("SELECT version FROM network WHERE id = $1")
            .bind(NETWORK)
            .fetch_one(&mut *transaction)
            .await?
            .try_get(0)?;
        let rows = sqlx::query(
            "SELECT kind, id, dead, body FROM object
             WHERE network = $1 AND version > $2 AND (kind <> $3 OR id > (
                SELECT COALESCE(MAX(id), 0) - $4 FROM object WHERE network = $1 AND kind = $3))
             ORDER BY kind, id",
        )
        .bind(NETWORK)
        .bind(since)
        .bind(Kind::AuditEntry.name())
        .bind(KEPT_AUDIT as i64)
        .fetch_all(&mut *transaction)
        .await?;
        let objects = rows.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Loaded { version, objects })
    }

    /// Writes these, if nobody has written since this version. They are on the disk afterwards.
    ///
    /// # Errors
    /// Nothing was written.
    pub async fn commit(&self, expected: i64, writes: &[Stored]) -> anyhow::Result<Committed> {
        let mut transaction = self.pool.begin().await?;
        let moved =
            sqlx::query("UPDATE network SET version = version + 1 WHERE id = $1 AND version = $2")
                .bind(NETWORK)
                .bind(expected)
                .execute(&mut *transaction)
                .await?;
        if moved.rows_affected() != 1 {
            return Ok(Committed::Conflict);
        }
        let version = expected + 1;
        for Stored { kind, id, body } in writes {
            sqlx::query(
                "INSERT INTO object (network, kind, id, version, dead, body)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (network, kind, id) DO UPDATE SET
                 version = excluded.version, dead = excluded.dead, body = excluded.body",
            )
            .bind(NETWORK)
            .bind(kind.name())
            .bind(id)
            .bind(version)
            .bind(body.is_none())
            .bind(body.as_deref().unwrap_or_default())
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        Ok(Committed::At(version))
    }

    /// Everything that was ever kept, in order.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn everything(&self) -> anyhow::Result<Vec<Stored>> {
        let rows = sqlx::query(EVERYTHING).bind(NETWORK).fetch_all(&self.pool).await?;
        rows.iter().map(read).collect()
    }

    /// Closes the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

fn read(row: &SqliteRow) -> anyhow::Result<Stored> {
    let (name, id): (&str, i64) = (row.try_get(0)?, row.try_get(1)?);
    let kind = Kind::named(name).with_context(|| {
        format!("the store has a {name:?}, which this version does not know: use a newer one")
    })?;
    let is_dead: bool = row.try_get(2)?;
    let body: String = row.try_get(3)?;
    Ok(Stored { kind, id, body: (!is_dead).then_some(body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: i64, body: Option<&str>) -> Stored {
        Stored { kind: Kind::User, id, body: body.map(str::to_owned) }
    }

    #[tokio::test]
    async fn what_was_committed_is_there_when_the_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let store = Store::open(&file).await.unwrap();
        let first = [user(1, Some("{}")), user(2, Some("[]"))];
        assert_eq!(store.commit(0, &first).await.unwrap(), Committed::At(1));
        let second = [user(1, None), user(3, Some("7"))];
        assert_eq!(store.commit(1, &second).await.unwrap(), Committed::At(2));
        store.close().await;
        let store = Store::open(&file).await.unwrap();
        let loaded = store.load().await.unwrap();
        assert_eq!(loaded.version, 2);
        let expected = [user(1, None), user(2, Some("[]")), user(3, Some("7"))];
        assert_eq!(loaded.objects, expected);
        assert_eq!(store.tail(1).await.unwrap().objects, second);
    }

    #[tokio::test]
    async fn an_audit_is_kept_whole_and_its_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store.sqlite")).await.unwrap();
        let entry = |id| Stored { kind: Kind::AuditEntry, id, body: Some("{}".into()) };
        let all: Vec<Stored> = (1..=KEPT_AUDIT as i64 + 5).map(entry).collect();
        store.commit(0, &all).await.unwrap();
        store.commit(1, &[user(1, Some("{}"))]).await.unwrap();
        let mut expected = all[5..].to_vec();
        expected.push(user(1, Some("{}")));
        assert_eq!(store.load().await.unwrap().objects, expected);
        let kept = sqlx::query("SELECT COUNT(*) FROM object").fetch_one(&store.pool).await.unwrap();
        assert_eq!(kept.get::<i64, _>(0), all.len() as i64 + 1);
    }

    #[tokio::test]
    async fn of_two_who_saw_the_same_version_one_commits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        let (one, other) = (Store::open(&file).await.unwrap(), Store::open(&file).await.unwrap());
        assert_eq!(one.commit(0, &[user(1, Some("1"))]).await.unwrap(), Committed::At(1));
        assert_eq!(other.commit(0, &[user(1, Some("2"))]).await.unwrap(), Committed::Conflict);
        assert_eq!(other.load().await.unwrap().objects, [user(1, Some("1"))]);
        assert_eq!(other.commit(1, &[user(1, Some("2"))]).await.unwrap(), Committed::At(2));
    }
}
