//! What the servers of a network say to each other by way of the database.

use sqlx::{AssertSqlSafe, postgres::PgListener};

use super::{Engine, Lease, Open, PATIENCE, answered, postgres, sqlite, within};

/// What a look at the database saw.
#[derive(Debug)]
pub struct Polled {
    /// The network's version.
    pub version: i64,
    /// As [`Tail::origin`].
    pub origin: i64,
    /// Whether the own lease was there to be renewed.
    pub is_there: bool,
    /// Others' leases.
    pub leases: Vec<Lease>,
}

/// What the servers of a network say to each other by way of the database.
pub struct Watch {
    pub(super) engine: Engine,
    pub(super) own: i64,
}

impl Watch {
    /// Which of all servers this is.
    pub fn own(&self) -> i64 {
        self.own
    }

    /// Renews the own lease, which may not be there any more, and reads the network's version and
    /// others' leases.
    ///
    /// # Errors
    /// The database does not answer, or takes no changes.
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
        answered(PATIENCE, poll).await
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
        answered(PATIENCE, nodes).await
    }

    /// Forgets a lease that was not renewed.
    ///
    /// # Errors
    /// The database does not answer, or takes no changes.
    pub async fn end(&self, lease: &Lease) -> anyhow::Result<()> {
        let end = async {
            let mut open = self.engine.open().await?;
            within!(&mut open, end_lease(lease.id, lease.beat))?;
            Ok(open.commit().await?)
        };
        answered(PATIENCE, end).await
    }

    /// Wakes others that listen. It is in no transaction that writes: at the end of one with it every
    /// other of the database would wait.
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
        answered(PATIENCE, wake).await
    }

    /// What hears that. Behind PgBouncer it hears nothing, and polling finds out.
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
