//! Where a network is kept: every object is a row, and every change of some of them a transaction
//! that also moves the network's version. A writer that expected another version changed nothing, so
//! that any number of servers may have one network:
//!
//! ```text
//!   tail(since) ──► what others wrote      commit(expected, writes) ──► At(version)
//!   turn(since) ──► the same, and others wait until commit or leave  │  Conflict: others were first
//!                                                                    └─ Unknown: the answer was lost
//! ```

mod backup;
mod database;
mod schema;
mod statements;
mod trouble;
mod watch;
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
    database::{Database, has_password},
    trouble::{Trouble, trouble_of},
    watch::{Polled, Watch},
};

/// Another process may be about to finish a transaction.
const BUSY: Duration = Duration::from_secs(5);
/// A database that says nothing for so long is not there. The longest statement reads a whole network.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for who asks whether it is there.
const PROBE: Duration = Duration::from_secs(4);
/// Connections to PostgreSQL: the writer's, the poll's, the one that listens, and some whose other end
/// is not known to be gone.
const CONNECTIONS: u32 = 6;

/// Where a network is kept.
pub struct Store {
    engine: Engine,
    /// Which of all that write this is.
    writer: i64,
    turn: Option<Open>,
}

/// What each statement is bound to: it reads and writes rows of one network.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// The network's number in its database.
    network: i64,
    /// Whether statements are prepared once a connection: not where connections are pooled elsewhere.
    persistent: bool,
}

impl Scope {
    /// Of a file, which has one network.
    const OF_FILE: Self = Self { network: 1, persistent: true };

    /// What PostgreSQL's NOTIFY is heard by.
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

/// Asks whether the store takes writes.
pub struct Prober {
    engine: Engine,
    writer: i64,
}

impl Prober {
    /// Writes what is there already, as a transaction that is on the disk afterwards.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn probe(&self) -> anyhow::Result<()> {
        let probe = async {
            let mut open = self.engine.open().await?;
            match &mut open {
                // A page that nothing changed on is not written: it is changed, and changed back.
                Open::Sqlite(own, scope) => {
                    for change in statements::CHANGE_AND_BACK {
                        sqlx::query(change).bind(scope.network).execute(&mut **own).await?;
                    }
                }
                // No other server waits for a row of this one's.
                Open::Postgres(own, scope) => {
                    let change = sqlx::query(statements::TOUCH).persistent(scope.persistent);
                    change.bind(scope.network).bind(self.writer).execute(&mut **own).await?;
                }
            }
            Ok(open.commit().await?)
        };
        answered(PROBE, probe).await
    }
}

/// How an attempt to commit ended.
#[derive(Debug)]
pub enum Committed {
    /// This is the version now.
    At(i64),
    /// Somebody else has changed something.
    Conflict,
    /// It is not known: [`Tail::written`] of the next turn tells.
    Unknown(anyhow::Error),
}

/// What was written, of all or behind a version.
#[derive(Debug)]
pub struct Tail {
    /// The version.
    pub version: i64,
    /// The last version that this writer wrote; 0 for none, and for a turn that reads on.
    pub written: i64,
    /// Which run of a database has it. Another one may have lost something, and have other objects by
    /// the same version.
    pub origin: i64,
    /// The objects.
    pub objects: Vec<Stored>,
}

/// What a server says of the streams that it has. It is void when it is not renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The server.
    pub id: i64,
    /// Another each time that it is renewed.
    pub beat: i64,
    /// Another each time that it has other nodes.
    pub change: i64,
    /// The nodes, by their numbers; none where they are not said.
    pub nodes: Option<String>,
}

/// What the servers of a network have in common, as far as writing it goes.
pub trait Shared: Send + 'static {
    /// What was written after this version.
    fn tail(&mut self, since: i64) -> impl Future<Output = anyhow::Result<Tail>> + Send;

    /// The same; others that write wait until `commit`, or `leave`.
    fn turn(&mut self, since: i64) -> impl Future<Output = anyhow::Result<Tail>> + Send;

    /// Lets others write.
    fn leave(&mut self) -> impl Future<Output = ()> + Send;

    /// Writes these, if nobody has written since this version, and the database is that of this
    /// origin, or any for 0. They are on the disk afterwards. An error: nothing was written.
    fn commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> impl Future<Output = anyhow::Result<Committed>> + Send;

    /// Nothing is asked any more.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// By each engine's statements, in its transaction.
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
            // A server that stops in the middle of its turn is not waited for.
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
    /// Opens a database, whose tables are made if there are none.
    ///
    /// # Errors
    /// It cannot be opened or is none of a store's.
    pub async fn open(database: &Database) -> anyhow::Result<Self> {
        let engine = match database {
            Database::File(file) => Self::open_file(file).await?,
            Database::Server { options, pooled, network, .. } => {
                let scope = Scope { network: network.get().into(), persistent: !pooled };
                let pool = PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(PATIENCE)
                    .connect_with((**options).clone());
                let pool = async { pool.await.context("connecting to PostgreSQL") };
                let pool = answered(PATIENCE * 2, pool).await?;
                schema::migrate_postgres(&pool, scope).await.context("the database's tables")?;
                Engine::Postgres(pool, scope)
            }
        };
        let mut number = [0; 8];
        getrandom::fill(&mut number).context("randomness")?;
        // Of 63 bits: 0 is none.
        let writer = (i64::from_le_bytes(number) & i64::MAX).max(1);
        Ok(Self { engine, writer, turn: None })
    }

    async fn open_file(file: &Path) -> anyhow::Result<Engine> {
        // The database and its log have keys in them. SQLite makes the log with the database's mode.
        // Only a new file is opened here: a close would end the locks of another store of this process.
        match fs::OpenOptions::new().append(true).create_new(true).mode(0o600).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => drop(made.with_context(|| format!("{}", file.display()))?),
        }
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // An acknowledged change outlives a power cut.
            .synchronous(SqliteSynchronous::Full)
            // The sandbox has no folder for what is too large to sort.
            .pragma("temp_store", "MEMORY")
            .busy_timeout(BUSY);
        let pool = file_pool().connect_with(options).await;
        let pool = pool.with_context(|| format!("{}", file.display()))?;
        let scope = Scope::OF_FILE;
        let migrated = schema::migrate_sqlite(&pool, scope).await;
        migrated.with_context(|| format!("{}", file.display()))?;
        Ok(Engine::Sqlite(pool, scope))
    }

    /// Everything that is used.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn load(&mut self) -> anyhow::Result<Tail> {
        // No version is as low.
        self.tail(-1).await
    }

    /// Everything that was ever kept, in order.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn everything(&self) -> anyhow::Result<Vec<Stored>> {
        let mut open = self.engine.open().await?;
        within!(&mut open, everything())
    }

    /// What asks whether this takes writes.
    pub fn prober(&self) -> Prober {
        Prober { engine: self.engine.clone(), writer: self.writer }
    }

    /// Whether several servers may have it.
    pub fn is_shared(&self) -> bool {
        matches!(self.engine, Engine::Postgres(..))
    }

    /// What several servers need to know of each other; `None` for a store of one machine.
    pub fn watch(&self) -> Option<Watch> {
        match self.engine {
            Engine::Sqlite(..) => None,
            Engine::Postgres(..) => Some(Watch { engine: self.engine.clone(), own: self.writer }),
        }
    }

    /// Has the key that clients know this network by be this one, if it has none.
    ///
    /// # Errors
    /// It has another.
    pub async fn claim(&self, key: &str) -> anyhow::Result<()> {
        let Engine::Postgres(pool, scope) = &self.engine else { return Ok(()) };
        let kept = schema::claim(pool, *scope, key).await?;
        anyhow::ensure!(
            kept == key,
            "the network of this database is known by the key {kept}, and this server has {key}: \
             copy noise.key from the state_dir of another server"
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
        // What this writer wrote last matters where all is compared.
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
            Err(error) if trouble::is_conflict(&error) => return Ok(Committed::Conflict),
            Err(error) => return Err(error.into()),
        }
        Ok(match timeout(PATIENCE, open.commit()).await {
            Ok(Ok(())) => Committed::At(expected.0 + 1),
            Ok(Err(error)) => Committed::Unknown(error.into()),
            Err(late) => Committed::Unknown(late.into()),
        })
    }
}

impl Shared for Store {
    async fn tail(&mut self, since: i64) -> anyhow::Result<Tail> {
        answered(PATIENCE, self.try_tail(since)).await
    }

    async fn turn(&mut self, since: i64) -> anyhow::Result<Tail> {
        answered(PATIENCE, self.try_turn(since)).await
    }

    async fn leave(&mut self) {
        self.turn = None;
    }

    async fn commit(
        &mut self,
        expected: (i64, i64),
        writes: &[Stored],
    ) -> anyhow::Result<Committed> {
        // What is not committed in time is not: the transaction falls with the connection.
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

/// What a database says within this time.
async fn answered<T>(
    limit: Duration,
    answer: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    timeout(limit, answer).await.context("it does not answer")?
}

fn file_pool() -> SqlitePoolOptions {
    // A full disk ends a transaction of SQLite's without sqlx, which would have the next one be part
    // of it, and never committed. The rollback of one that was dropped is done before the ping's answer.
    SqlitePoolOptions::new().max_connections(2).after_release(|connection, _| {
        Box::pin(async move {
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}

fn object(kind: &str, id: i64, is_dead: bool, body: String) -> anyhow::Result<Stored> {
    let kind = Kind::named(kind).with_context(|| {
        format!("the store has a {kind:?}, which this version does not know: use a newer one")
    })?;
    Ok(Stored { kind, id, body: (!is_dead).then_some(body) })
}

#[cfg(test)]
mod tests;
