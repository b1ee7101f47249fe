//! Storage of networks. Every object is a row, and every change of objects is a transaction that
//! also increments the network's version. A writer that expects another version changes nothing, so
//! that several servers can share a network:
//!
//! ```text
//!   tail(since) ──► changes of others     commit(expected, writes) ──► At(version)
//!   turn(since) ──► the same; other writers wait until commit or leave │  Conflict: another writer was first
//!                                                                      └─ Unknown: the answer was lost
//! ```

mod backup;
mod failure;
mod location;
mod replicas;
mod schema;
mod statements;
mod writes;

use std::{fs, io, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

use anyhow::Context;
use coordinator::object::{Kind, Stored};
use sqlx::{
    Connection, PgPool, Postgres, Sqlite, SqlitePool, Transaction,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::time::timeout;

use self::statements::{postgres, sqlite};
pub use self::{
    backup::Backup,
    failure::{FailureKind, failure_kind},
    location::{DatabaseLocation, has_password},
    replicas::{Polled, Replicas},
};

/// How long to wait for a transaction of another process.
const BUSY: Duration = Duration::from_secs(5);
/// Maximum time for an answer of the database. The longest statement reads a whole network.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a health check.
const PROBE: Duration = Duration::from_secs(4);
/// Connections to PostgreSQL: for the writer, the poll and the listener, and some that may have lost
/// their other end.
const CONNECTIONS: u32 = 6;

/// The store of a network.
pub struct Store {
    engine: Engine,
    /// ID of this writer among all writers.
    writer: i64,
    turn: Option<Open>,
}

/// The network that statements read and write.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// Number of the network in the database.
    network: i64,
    /// Whether statements are prepared once per connection. They are not with an external
    /// connection pool.
    persistent: bool,
}

impl Scope {
    /// Scope of a file, which contains one network.
    const OF_FILE: Self = Self { network: 1, persistent: true };

    /// Channel of PostgreSQL's NOTIFY.
    fn channel(self) -> String {
        match self.network {
            1 => "linerate".to_owned(),
            other => format!("linerate_{other}"),
        }
    }
}

#[derive(Clone)]
enum Engine {
    Sqlite(SqlitePool, Scope),
    Postgres(PgPool, Scope),
}

enum Open {
    Sqlite(Transaction<'static, Sqlite>, Scope),
    Postgres(Transaction<'static, Postgres>, Scope),
}

/// Checks that the store accepts writes.
pub struct Prober {
    engine: Engine,
    writer: i64,
}

impl Prober {
    /// Writes existing values in a transaction that reaches the disk.
    ///
    /// # Errors
    /// The write failed.
    pub async fn probe(&self) -> anyhow::Result<()> {
        let probe = async {
            let mut open = self.engine.open().await?;
            match &mut open {
                // SQLite does not write an unchanged page, so a value is changed and
                // changed back.
                Open::Sqlite(own, scope) => {
                    for change in statements::CHANGE_AND_BACK {
                        sqlx::query(change).bind(scope.network).execute(&mut **own).await?;
                    }
                }
                // No other server waits for the row of this writer.
                Open::Postgres(own, scope) => {
                    let change = sqlx::query(statements::TOUCH).persistent(scope.persistent);
                    change.bind(scope.network).bind(self.writer).execute(&mut **own).await?;
                }
            }
            Ok(open.commit().await?)
        };
        with_timeout(PROBE, probe).await
    }
}

/// Outcome of a commit.
#[derive(Debug)]
pub enum Committed {
    /// Committed. This is the new version.
    At(i64),
    /// Another writer was first.
    Conflict,
    /// Unknown. [`Tail::written`] of the next turn has the outcome.
    Unknown(anyhow::Error),
}

/// Objects of a network, all or those changed after a version.
#[derive(Debug)]
pub struct Tail {
    /// The network's version.
    pub version: i64,
    /// The last version by this writer. 0 if there is none, or in a turn that reads only
    /// changes.
    pub written: i64,
    /// ID of the database that answered. Another one may lack changes, and have other objects at
    /// the same version.
    pub origin: i64,
    /// The changed objects.
    pub objects: Vec<Stored>,
}

/// The nodes that are connected to a server. It expires when it is not renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The server.
    pub id: i64,
    /// Incremented with each renewal.
    pub beat: i64,
    /// Changes with the nodes.
    pub change: i64,
    /// IDs of the nodes. `None` if they are not included.
    pub nodes: Option<String>,
}

/// A network's database, which several servers can share.
pub trait Database: Send + 'static {
    /// Objects that changed after this version.
    fn tail(&mut self, since: i64) -> impl Future<Output = anyhow::Result<Tail>> + Send;

    /// The same. Other writers wait until `commit` or `leave`.
    fn turn(&mut self, since: i64) -> impl Future<Output = anyhow::Result<Tail>> + Send;

    /// Ends the turn.
    fn leave(&mut self) -> impl Future<Output = ()> + Send;

    /// Writes objects if the version and the database's ID are as expected. ID 0 matches any
    /// database. Afterwards, they are on disk. After an error, nothing was written.
    fn commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> impl Future<Output = anyhow::Result<Committed>> + Send;

    /// Closes the connections.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// Runs a statement of either engine in its transaction.
macro_rules! within {
    ($open:expr, $statement:ident($($argument:expr),*)) => {
        match $open {
            Open::Sqlite(own, scope) => sqlite::$statement(own, $($argument,)* *scope).await,
            Open::Postgres(own, scope) => postgres::$statement(own, $($argument,)* *scope).await,
        }
    };
}

use within;

impl Engine {
    async fn open(&self) -> sqlx::Result<Open> {
        Ok(match self {
            Self::Sqlite(pool, scope) => Open::Sqlite(pool.begin().await?, *scope),
            // PostgreSQL ends the transaction of a server that stops in its turn.
            Self::Postgres(pool, scope) => {
                let limits = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'; \
                              SET LOCAL lock_timeout = '8s'";
                Open::Postgres(pool.begin_with(limits).await?, *scope)
            }
        })
    }
}

impl Open {
    async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(own, _) => own.commit().await,
            Self::Postgres(own, _) => own.commit().await,
        }
    }
}

impl Store {
    /// Opens a database, and creates its tables if necessary.
    ///
    /// # Errors
    /// It cannot be opened, or is not a store.
    pub async fn open(database: &DatabaseLocation) -> anyhow::Result<Self> {
        let engine = match database {
            DatabaseLocation::File(file) => Self::open_file(file).await?,
            DatabaseLocation::Server { options, pooled, network, .. } => {
                let scope = Scope { network: network.get().into(), persistent: !pooled };
                let pool = PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(PATIENCE)
                    .connect_with((**options).clone());
                let pool = async { pool.await.context("connecting to PostgreSQL") };
                let pool = with_timeout(PATIENCE * 2, pool).await?;
                schema::migrate_postgres(&pool, scope).await.context("the database's tables")?;
                Engine::Postgres(pool, scope)
            }
        };
        let mut number = [0; 8];
        getrandom::fill(&mut number).context("randomness")?;
        // 63 bits. 0 means no writer.
        let writer = (i64::from_le_bytes(number) & i64::MAX).max(1);
        Ok(Self { engine, writer, turn: None })
    }

    async fn open_file(file: &Path) -> anyhow::Result<Engine> {
        // The database and its log contain keys. SQLite creates the log with the mode of the
        // database. Only a new file is opened here: closing an existing one would release the
        // locks of another store in this process.
        match fs::OpenOptions::new().append(true).create_new(true).mode(0o600).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => drop(made.with_context(|| format!("{}", file.display()))?),
        }
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // An acknowledged change survives a power failure.
            .synchronous(SqliteSynchronous::Full)
            // The sandbox does not allow temporary files.
            .pragma("temp_store", "MEMORY")
            .busy_timeout(BUSY);
        let pool = file_pool().connect_with(options).await;
        let pool = pool.with_context(|| format!("{}", file.display()))?;
        let scope = Scope::OF_FILE;
        let migrated = schema::migrate_sqlite(&pool, scope).await;
        migrated.with_context(|| format!("{}", file.display()))?;
        Ok(Engine::Sqlite(pool, scope))
    }

    /// The objects that a state is loaded from.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load(&mut self) -> anyhow::Result<Tail> {
        // All versions are higher.
        self.tail(-1).await
    }

    /// All objects ever stored, in order.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn everything(&self) -> anyhow::Result<Vec<Stored>> {
        let mut open = self.engine.open().await?;
        within!(&mut open, everything())
    }

    /// A health check of this store.
    pub fn prober(&self) -> Prober {
        Prober { engine: self.engine.clone(), writer: self.writer }
    }

    /// Whether several servers can share it.
    pub fn is_shared(&self) -> bool {
        matches!(self.engine, Engine::Postgres(..))
    }

    /// Exchange with other servers. `None` for a file.
    pub fn replicas(&self) -> Option<Replicas> {
        match self.engine {
            Engine::Sqlite(..) => None,
            Engine::Postgres(..) => {
                Some(Replicas { engine: self.engine.clone(), own: self.writer })
            }
        }
    }

    /// Stores the Noise key of the network if it is not set.
    ///
    /// # Errors
    /// The network has another key.
    pub async fn claim(&self, key: &str) -> anyhow::Result<()> {
        let Engine::Postgres(pool, scope) = &self.engine else { return Ok(()) };
        let known = schema::claim(pool, *scope, key).await?;
        anyhow::ensure!(
            known == key,
            "the network in this database has the key {known}, but this server has {key}: copy noise.key \
             from the state_dir of another server"
        );
        Ok(())
    }

    async fn try_tail(&mut self, since: i64) -> anyhow::Result<Tail> {
        let mut open = self.engine.open().await?;
        let seen = within!(&mut open, version(self.writer))?;
        let tail = within!(&mut open, tail(since, seen))?;
        open.commit().await?;
        Ok(tail)
    }

    async fn try_turn(&mut self, since: i64) -> anyhow::Result<Tail> {
        let mut open = self.engine.open().await?;
        let mut turn = within!(&mut open, turn(since))?;
        // A full comparison needs the last version of this writer.
        if since < 0 {
            turn.written = within!(&mut open, version(self.writer))?.1;
        }
        self.turn = Some(open);
        Ok(turn)
    }

    async fn try_commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> anyhow::Result<Committed> {
        let mut open = match self.turn.take() {
            Some(open) => open,
            None => self.engine.open().await?,
        };
        let written = within!(&mut open, write(expected, self.writer, writes));
        match written {
            Ok(true) => {}
            Ok(false) => return Ok(Committed::Conflict),
            Err(error) if failure::is_conflict(&error) => return Ok(Committed::Conflict),
            Err(error) => return Err(error.into()),
        }
        Ok(match timeout(PATIENCE, open.commit()).await {
            Ok(Ok(())) => Committed::At(expected.0 + 1),
            Ok(Err(error)) => Committed::Unknown(error.into()),
            Err(late) => Committed::Unknown(late.into()),
        })
    }
}

impl Database for Store {
    async fn tail(&mut self, since: i64) -> anyhow::Result<Tail> {
        with_timeout(PATIENCE, self.try_tail(since)).await
    }

    async fn turn(&mut self, since: i64) -> anyhow::Result<Tail> {
        with_timeout(PATIENCE, self.try_turn(since)).await
    }

    async fn leave(&mut self) {
        self.turn = None;
    }

    async fn commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> anyhow::Result<Committed> {
        // A transaction that is not committed in time is rolled back with its connection.
        let all = timeout(PATIENCE * 3, self.try_commit(expected, writes)).await;
        all.unwrap_or_else(|late| Ok(Committed::Unknown(late.into())))
    }

    async fn close(&mut self) {
        self.turn = None;
        match &self.engine {
            Engine::Sqlite(pool, _) => pool.close().await,
            Engine::Postgres(pool, _) => pool.close().await,
        }
    }
}

/// The answer of a database within a time limit.
async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    timeout(limit, answer).await.context("no answer")?
}

fn file_pool() -> SqlitePoolOptions {
    // A full disk ends an SQLite transaction without sqlx's knowledge, which would make the next
    // one part of it, and never commit it. The rollback of a dropped transaction finishes before
    // the ping is answered.
    SqlitePoolOptions::new().max_connections(2).after_release(|connection, _| {
        Box::pin(async move {
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}

fn object(kind: &str, id: i64, is_dead: bool, body: String) -> anyhow::Result<Stored> {
    let kind = Kind::named(kind).with_context(|| {
        format!("the store contains an unknown kind of object, {kind:?}: use a newer version")
    })?;
    Ok(Stored { kind, id, body: (!is_dead).then_some(body) })
}

#[cfg(test)]
mod tests;
