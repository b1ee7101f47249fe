//! SQL statements, the same for both engines.
//!
//! All statements run in transactions and leave no session state, because PgBouncer may use another
//! connection for each transaction.

pub(super) const TAIL: &str = "SELECT kind, id, dead, body FROM object
     WHERE network = $1 AND version > $2 AND (kind <> $3 OR id > (
        SELECT COALESCE(MAX(id), 0) - $4 FROM object WHERE network = $1 AND kind = $3))
     ORDER BY kind, id";

pub(super) const EVERYTHING: &str =
    "SELECT kind, id, dead, body FROM object WHERE network = $1 ORDER BY kind, id";

/// Writes an existing value.
pub(super) const TOUCH: &str = "INSERT INTO writer (network, id, version) VALUES ($1, $2, 0)
     ON CONFLICT (network, id) DO UPDATE SET version = writer.version";
pub(super) const CHANGE_AND_BACK: [&str; 2] = [
    "UPDATE network SET version = version + 1 WHERE id = $1",
    "UPDATE network SET version = version - 1 WHERE id = $1",
];

pub(super) const BEAT: &str =
    "INSERT INTO lease (network, id, beat, change, nodes) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (network, id) DO UPDATE SET
     beat = excluded.beat, change = excluded.change, nodes = excluded.nodes";
pub(super) const BEAT_ONLY: &str = "UPDATE lease SET beat = $3 WHERE network = $1 AND id = $2";
pub(super) const LEASES: &str =
    "SELECT id, beat, change FROM lease WHERE network = $1 AND id <> $2 ORDER BY id";
pub(super) const LEASED: &str = "SELECT nodes FROM lease WHERE network = $1 AND id = $2";
/// A lease that was renewed in the meantime has another beat.
pub(super) const END_LEASE: &str = "DELETE FROM lease WHERE network = $1 AND id = $2 AND beat = $3";

/// The statements for one engine. sqlx's two connection types share no trait that would allow a
/// generic function without many bounds.
macro_rules! engine {
    ($name:ident, $database:ty, $connection:ty, [$($origin:tt)*]) => {
        pub(super) mod $name {
            use anyhow::Context;
            use coordinator::{
                RECENT_AUDIT_ENTRIES,
                object::{Kind, Stored},
            };
            use sqlx::{AssertSqlSafe, Row, query, raw_sql};

            use super::super::{Lease, Scope, Tail, object};
            use super::*;

            pub(crate) use super::super::writes::$name::write;

            /// Each writer has an ID, so that a writer that lost an answer can see
            /// whether its transaction was committed.
            const VERSION: &str = concat!(
                "SELECT n.version, COALESCE(w.version, 0), ",
                $($origin)*,
                " FROM network n
                 LEFT JOIN writer w ON w.network = n.id AND w.id = $2 WHERE n.id = $1"
            );

            /// Takes the turn without changing anything: other writers wait until the
            /// transaction ends. Their last changes are read in the same message,
            /// because each further message would make them wait longer.
            pub(crate) async fn turn(
                connection: &mut $connection,
                since: i64,
                scope: Scope,
            ) -> anyhow::Result<Tail> {
                let turn = concat!(
                    "UPDATE network SET version = version WHERE id = $1 RETURNING version, ",
                    $($origin)*
                );
                // A message with two statements cannot have parameters. These are
                // numbers and one constant.
                let text = format!("{turn}; {TAIL}")
                    .replace("$1", &scope.network.to_string())
                    .replace("$2", &since.to_string())
                    .replace("$3", &format!("'{}'", Kind::AuditEntry.name()))
                    .replace("$4", &RECENT_AUDIT_ENTRIES.to_string());
                let rows = raw_sql(AssertSqlSafe(text)).fetch_all(connection).await?;
                let (own, rows) = rows.split_first().context("the network is not there")?;
                let (version, origin) = (own.try_get(0)?, own.try_get(1)?);
                let objects = rows.iter().map(read).collect::<anyhow::Result<_>>()?;
                Ok(Tail { version, written: 0, origin, objects })
            }

            pub(crate) async fn tail(
                connection: &mut $connection,
                since: i64,
                (version, written, origin): (i64, i64, i64),
                scope: Scope,
            ) -> anyhow::Result<Tail> {
                // Rows of a version that was written in between are read again later.
                let rows = match version == since {
                    true => Vec::new(),
                    false => {
                        query(TAIL)
                            .persistent(scope.persistent)
                            .bind(scope.network)
                            .bind(since)
                            .bind(Kind::AuditEntry.name())
                            .bind(RECENT_AUDIT_ENTRIES as i64)
                            .fetch_all(&mut *connection)
                            .await?
                    }
                };
                let objects = rows.iter().map(read).collect::<anyhow::Result<_>>()?;
                Ok(Tail { version, written, origin, objects })
            }

            pub(crate) async fn version(
                connection: &mut $connection,
                writer: i64,
                scope: Scope,
            ) -> sqlx::Result<(i64, i64, i64)> {
                let row = query(VERSION).persistent(scope.persistent).bind(scope.network).bind(writer);
                let row = row.fetch_one(&mut *connection).await?;
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            }

            pub(crate) async fn everything(
                connection: &mut $connection,
                scope: Scope,
            ) -> anyhow::Result<Vec<Stored>> {
                let rows = query(EVERYTHING).persistent(false).bind(scope.network);
                let rows = rows.fetch_all(&mut *connection).await?;
                rows.iter().map(read).collect()
            }

            pub(crate) fn read(row: &<$database as sqlx::Database>::Row) -> anyhow::Result<Stored> {
                object(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)
            }

            pub(crate) async fn beat(
                connection: &mut $connection,
                lease: &Lease,
                scope: Scope,
            ) -> sqlx::Result<bool> {
                let Lease { id, beat, change, nodes } = lease;
                if nodes.is_none() {
                    let renewed = query(BEAT_ONLY).persistent(scope.persistent);
                    let renewed = renewed.bind(scope.network).bind(id).bind(beat);
                    return Ok(renewed.execute(&mut *connection).await?.rows_affected() == 1);
                }
                let taken = query(BEAT).persistent(scope.persistent).bind(scope.network).bind(id).bind(beat);
                let taken = taken.bind(change).bind(nodes.as_deref().unwrap_or_default());
                taken.execute(&mut *connection).await?;
                Ok(true)
            }

            pub(crate) async fn leases(
                connection: &mut $connection,
                own: i64,
                scope: Scope,
            ) -> sqlx::Result<Vec<Lease>> {
                let rows = query(LEASES).persistent(scope.persistent).bind(scope.network).bind(own);
                let rows = rows.fetch_all(&mut *connection).await?;
                let lease = |row: &<$database as sqlx::Database>::Row| {
                    let (id, beat) = (row.try_get(0)?, row.try_get(1)?);
                    Ok(Lease { id, beat, change: row.try_get(2)?, nodes: None })
                };
                rows.iter().map(lease).collect()
            }

            pub(crate) async fn leased(
                connection: &mut $connection,
                id: i64,
                scope: Scope,
            ) -> sqlx::Result<Option<String>> {
                let row = query(LEASED).persistent(scope.persistent).bind(scope.network).bind(id);
                let row = row.fetch_optional(&mut *connection).await?;
                row.map(|row| row.try_get(0)).transpose()
            }

            pub(crate) async fn end_lease(
                connection: &mut $connection,
                id: i64,
                beat: i64,
                scope: Scope,
            ) -> sqlx::Result<()> {
                let ended = query(END_LEASE).persistent(scope.persistent);
                ended.bind(scope.network).bind(id).bind(beat).execute(&mut *connection).await?;
                Ok(())
            }
        }
    };
}

/// ID of the running database. Another PostgreSQL, or the same one after a crash, has another start
/// time in microseconds. A database restored from a backup has other table IDs.
macro_rules! origin {
    () => {
        "CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000000 AS BIGINT)
         + 'network'::REGCLASS::OID::BIGINT"
    };
}
pub(super) use origin;

engine!(postgres, sqlx::Postgres, sqlx::PgConnection, [origin!()]);
// A file is always the same database.
engine!(sqlite, sqlx::Sqlite, sqlx::SqliteConnection, ["0"]);
