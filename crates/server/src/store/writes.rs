//! Statements that increment a network's version and write objects with the new version, for each
//! engine.

/// Clause that overwrites existing objects.
macro_rules! overwrite {
    () => {
        " ON CONFLICT (network, kind, id) DO UPDATE SET
         version = excluded.version, dead = excluded.dead, body = excluded.body"
    };
}

pub(super) mod sqlite {
    use coordinator::object::Stored;
    use sqlx::{QueryBuilder, Sqlite, SqliteConnection, query};

    use super::super::Scope;

    const MOVE: &str = "UPDATE network SET version = version + 1 WHERE id = $1 AND version = $2";
    const WRITER: &str = "INSERT INTO writer (network, id, version) VALUES ($1, $2, $3)
         ON CONFLICT (network, id) DO UPDATE SET version = excluded.version";
    const WRITE: &str = "INSERT INTO object (network, kind, id, version, dead, body) ";

    /// Maximum number of objects in one statement, within the limit on parameters.
    const MOST: usize = 64;

    /// Writes objects if the version is as expected.
    pub(crate) async fn write(
        connection: &mut SqliteConnection,
        (expected, _): (i64, i64),
        writer: i64,
        writes: &[Stored],
        scope: Scope,
    ) -> sqlx::Result<bool> {
        let moved = query(MOVE).persistent(scope.persistent).bind(scope.network).bind(expected);
        if moved.execute(&mut *connection).await?.rows_affected() != 1 {
            return Ok(false);
        }
        let version = expected + 1;
        let wrote = query(WRITER).persistent(scope.persistent).bind(scope.network).bind(writer);
        wrote.bind(version).execute(&mut *connection).await?;
        for chunk in writes.chunks(MOST) {
            let mut statement = QueryBuilder::<Sqlite>::new(WRITE);
            statement.push_values(chunk, |mut row, Stored { kind, id, body }| {
                row.push_bind(scope.network).push_bind(kind.name()).push_bind(*id);
                row.push_bind(version).push_bind(body.is_none());
                row.push_bind(body.as_deref().unwrap_or_default());
            });
            statement.push(overwrite!());
            // Only frequent statement lengths are cached.
            let is_often = chunk.len() <= 4 || chunk.len() == MOST;
            let statement = statement.build().persistent(scope.persistent && is_often);
            statement.execute(&mut *connection).await?;
        }
        Ok(true)
    }
}

pub(super) mod postgres {
    use coordinator::object::Stored;
    use sqlx::{PgConnection, Row, query};

    use super::super::{Scope, statements::origin};

    /// A single statement, because other writers wait for its round trip.
    const WRITE: &str = concat!(
        "WITH moved AS (
            UPDATE network SET version = version + 1
            WHERE id = $1 AND version = $2 AND $3 IN (0, ",
        origin!(),
        ") RETURNING version),
         wrote AS (
            INSERT INTO writer (network, id, version) SELECT $1, $4, version FROM moved
            ON CONFLICT (network, id) DO UPDATE SET version = excluded.version),
         put AS (
            INSERT INTO object (network, kind, id, version, dead, body)
            SELECT $1, new.kind, new.id, moved.version, new.dead, new.body
            FROM moved, unnest($5::TEXT[], $6::BIGINT[], $7::BOOLEAN[], $8::TEXT[])
                AS new (kind, id, dead, body)",
        overwrite!(),
        ") SELECT COUNT(*) FROM moved"
    );

    /// Writes objects if the version and the database's ID are as expected.
    pub(crate) async fn write(
        connection: &mut PgConnection,
        (expected, origin): (i64, i64),
        writer: i64,
        writes: &[Stored],
        scope: Scope,
    ) -> sqlx::Result<bool> {
        let kinds: Vec<&str> = writes.iter().map(|stored| stored.kind.name()).collect();
        let ids: Vec<i64> = writes.iter().map(|stored| stored.id).collect();
        let dead: Vec<bool> = writes.iter().map(|stored| stored.body.is_none()).collect();
        let bodies = writes.iter().map(|stored| stored.body.as_deref().unwrap_or_default());
        let bodies: Vec<&str> = bodies.collect();
        let write = query(WRITE).persistent(scope.persistent).bind(scope.network).bind(expected);
        let write = write.bind(origin).bind(writer).bind(kinds).bind(ids).bind(dead).bind(bodies);
        let moved: i64 = write.fetch_one(&mut *connection).await?.try_get(0)?;
        Ok(moved == 1)
    }
}
