//! Exchange between the servers of a network through their database.

use sqlx::{AssertSqlSafe, postgres::PgListener};

use super::{Engine, Lease, Open, PATIENCE, postgres, sqlite, with_timeout, within};

/// Result of a poll.
#[derive(Debug)]
pub struct Polled {
    /// The network's version.
    pub version: i64,
    /// As [`Tail::origin`].
    pub origin: i64,
    /// Whether the own lease existed.
    pub is_there: bool,
    /// Leases of the other servers.
    pub leases: Vec<Lease>,
}

/// Access to the other servers of a network through the database.
pub struct Replicas {
    pub(super) engine: Engine,
    pub(super) own: i64,
}

impl Replicas {
    /// ID of this server.
    pub fn own(&self) -> i64 {
        self.own
    }

    /// Renews the own lease, which may have been deleted, and reads the network's version and
    /// the other leases.
    ///
    /// # Errors
    /// The database does not answer, or is read-only.
    pub async fn poll(&self, own: Option<Lease>) -> anyhow::Result<Polled> {
        let poll = async {
            let mut open = self.engine.open().await?;
            let is_there = match &own {
                Some(own) => within!(&mut open, beat(own))?,
                None => true,
            };
            let (version, _, origin) = within!(&mut open, version(self.own))?;
            let leases = within!(&mut open, leases(self.own))?;
            open.commit().await?;
            Ok(Polled { version, origin, is_there, leases })
        };
        with_timeout(PATIENCE, poll).await
    }

    /// The nodes of another server.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn nodes(&self, id: i64) -> anyhow::Result<Option<String>> {
        let nodes = async {
            let mut open = self.engine.open().await?;
            let nodes = within!(&mut open, leased(id))?;
            open.commit().await?;
            Ok(nodes)
        };
        with_timeout(PATIENCE, nodes).await
    }

    /// Deletes a lease that was not renewed.
    ///
    /// # Errors
    /// The database does not answer, or is read-only.
    pub async fn end(&self, lease: &Lease) -> anyhow::Result<()> {
        let end = async {
            let mut open = self.engine.open().await?;
            within!(&mut open, end_lease(lease.id, lease.beat))?;
            Ok(open.commit().await?)
        };
        with_timeout(PATIENCE, end).await
    }

    /// Notifies servers that listen. The notification is not part of a writing transaction,
    /// because it would serialize the commits of the whole database.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn wake(&self) -> anyhow::Result<()> {
        let Engine::Postgres(pool, scope) = &self.engine else { return Ok(()) };
        let words = format!("NOTIFY {}", scope.channel());
        let wake = async {
            sqlx::raw_sql(AssertSqlSafe(words)).execute(pool).await?;
            Ok(())
        };
        with_timeout(PATIENCE, wake).await
    }

    /// Listens for these notifications. They do not work with PgBouncer, and polling is used
    /// instead.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn listen(&self) -> anyhow::Result<Option<PgListener>> {
        let Engine::Postgres(pool, scope) = &self.engine else { return Ok(None) };
        if !scope.persistent {
            return Ok(None);
        }
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(&scope.channel()).await?;
        Ok(Some(listener))
    }
}
