//! Backups of a store in use: one file with the network and the server's two keys.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use coordinator::object::Stored;
use sqlx::{
    ConnectOptions, Connection, Row,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow},
};
use zeroize::Zeroizing;

use super::{Engine, Scope, Store, schema, sqlite, statements::EVERYTHING};

impl Store {
    /// Copies all committed objects into a new file, together with these named texts.
    /// Afterwards, it is on disk.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub async fn back_up(&self, file: &Path, texts: &[(&str, &str)]) -> anyhow::Result<()> {
        let name = || file.display().to_string();
        let Engine::Sqlite(pool, _) = &self.engine else {
            bail!(
                "this network is in PostgreSQL: back it up there, for example with pg_dump, or `export` it"
            );
        };
        if file.exists() {
            bail!("{}: the file exists already", file.display());
        }
        let mut partial = file.as_os_str().to_owned();
        partial.push(".new");
        let partial = Path::new(&partial);
        // Only the owner may read the file, because it contains keys. SQLite writes into an
        // existing empty file.
        sys::atomic_file::remove(partial).with_context(name)?;
        sys::atomic_file::replace(partial, "").with_context(name)?;
        let text = partial.to_str().context("the file's name is not UTF-8")?;
        sqlx::query("VACUUM INTO $1").bind(text).execute(pool).await.with_context(name)?;
        let options = SqliteConnectOptions::new().filename(partial);
        let mut copy = options.journal_mode(SqliteJournalMode::Delete).connect().await?;
        let kept = "CREATE TABLE kept (name TEXT PRIMARY KEY, body TEXT NOT NULL)";
        sqlx::query(kept).execute(&mut copy).await.with_context(name)?;
        for (name, text) in texts {
            let insert = sqlx::query("INSERT INTO kept (name, body) VALUES ($1, $2)");
            insert.bind(*name).bind(*text).execute(&mut copy).await?;
        }
        copy.close().await?;
        fs::File::open(partial).and_then(|file| file.sync_all()).with_context(name)?;
        fs::rename(partial, file).with_context(name)
    }
}

/// A loaded backup.
pub struct Backup {
    /// Objects of the network.
    pub objects: Vec<Stored>,
    texts: Vec<(String, Zeroizing<String>)>,
}

impl Backup {
    /// Loads a backup. `None` if the file is another database.
    ///
    /// # Errors
    /// It cannot be read, or was written by a newer program.
    pub async fn open(file: &Path) -> anyhow::Result<Option<Self>> {
        let options = SqliteConnectOptions::new().filename(file).read_only(true);
        let mut from = options.connect().await?;
        let tables = "SELECT COUNT(*) FROM sqlite_master WHERE name IN ('object', 'kept')";
        let found: i64 = sqlx::query(tables).fetch_one(&mut from).await?.try_get(0)?;
        if found != 2 {
            return Ok(None);
        }
        schema::check(&mut from).await?;
        let rows = sqlx::query("SELECT name, body FROM kept").fetch_all(&mut from).await?;
        let text = |row: &SqliteRow| Ok((row.try_get(0)?, row.try_get::<String, _>(1)?.into()));
        let texts = rows.iter().map(text).collect::<Result<_, sqlx::Error>>()?;
        let all = sqlx::query(EVERYTHING).bind(Scope::OF_FILE.network).fetch_all(&mut from).await?;
        let objects = all.iter().map(sqlite::read).collect::<anyhow::Result<_>>()?;
        from.close().await?;
        Ok(Some(Self { objects, texts }))
    }

    /// The text with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(own, _)| own == name).map(|(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use coordinator::object::Kind;

    use super::*;
    use crate::store::{Database, DatabaseLocation};

    #[tokio::test]
    async fn a_backup_has_objects_and_texts_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let (file, copy) = (folder.path().join("store.sqlite"), folder.path().join("copy"));
        let mut store = Store::open(&DatabaseLocation::File(file.clone())).await.unwrap();
        let objects = [
            Stored { kind: Kind::User, id: 1, body: Some("{}".into()) },
            Stored { kind: Kind::User, id: 2, body: None },
        ];
        store.commit((0, 0), &objects).await.unwrap();
        store.back_up(&copy, &[("a", "text")]).await.unwrap();
        store.commit((1, 0), &[Stored { kind: Kind::User, id: 3, body: None }]).await.unwrap();
        let backup = Backup::open(&copy).await.unwrap().unwrap();
        assert_eq!((backup.text("a"), backup.text("b")), (Some("text"), None));
        assert_eq!(backup.objects, objects);
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(store.back_up(&copy, &[]).await.is_err());
        assert!(Backup::open(&file).await.unwrap().is_none());
    }
}
