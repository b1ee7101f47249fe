//! Failures of a database.

use anyhow::Error;

/// Kind of failure, for commands that wait for the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The database is unavailable, possibly during a failover. Commands wait for it.
    Gone,
    /// It is read-only.
    ReadOnly,
    /// Its disk is full.
    Full,
    /// Waiting does not help.
    Other,
}

impl FailureKind {
    /// A description for users.
    pub fn words(self) -> &'static str {
        match self {
            Self::Gone => "the database does not answer",
            Self::ReadOnly => "the database accepts no changes at the moment: it is read-only",
            Self::Full => "the database accepts no changes at the moment: its disk is full",
            Self::Other => "the database refused the change",
        }
    }
}

/// The kind of a failure.
pub fn failure_kind(error: &Error) -> FailureKind {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<sqlx::Error>());
    let Some(sqlx::Error::Database(cause)) = cause else {
        return FailureKind::Gone;
    };
    let code = cause.code().unwrap_or_default();
    // Appendix A of PostgreSQL's manual, and SQLite's result codes (sqlite.org/rescode.html).
    match &*code {
        "25006" | "8" | "1032" => FailureKind::ReadOnly,
        "53100" | "13" => FailureKind::Full,
        "25P03" | "26000" | "5" | "517" | "6" => FailureKind::Gone,
        code if ["08", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class)) => {
            FailureKind::Gone
        }
        _ => FailureKind::Other,
    }
}

/// Whether a transaction failed because of a concurrent one.
pub(super) fn is_conflict(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| matches!(&*code, "40001" | "40P01"))
}
