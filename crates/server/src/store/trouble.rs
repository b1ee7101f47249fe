//! Why a database does not do what it is asked.

use anyhow::Error;

/// What a failure of the database means for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It may be another's turn to answer in a moment: it is waited for.
    Gone,
    /// It answers, and takes no changes.
    ReadOnly,
    /// It answers, and has no room.
    Full,
    /// Nothing that waiting helps against.
    Other,
}

impl Trouble {
    /// In words, for who asked for a change.
    pub fn words(self) -> &'static str {
        match self {
            Self::Gone => "the database does not answer",
            Self::ReadOnly => "the database takes no changes now: it is read-only",
            Self::Full => "the database takes no changes now: its disk is full",
            Self::Other => "the database did not take the change",
        }
    }
}

/// What a failure means.
pub fn trouble_of(error: &Error) -> Trouble {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<sqlx::Error>());
    let Some(sqlx::Error::Database(cause)) = cause else {
        return Trouble::Gone;
    };
    let code = cause.code().unwrap_or_default();
    // Appendix A of PostgreSQL's manual, and SQLite's result codes (sqlite.org/rescode.html).
    match &*code {
        "25006" | "8" | "1032" => Trouble::ReadOnly,
        "53100" | "13" => Trouble::Full,
        "25P03" | "26000" | "5" | "517" | "6" => Trouble::Gone,
        code if ["08", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class)) => {
            Trouble::Gone
        }
        _ => Trouble::Other,
    }
}

/// Whether others were first, in a transaction that was more careful than it had to be.
pub fn is_conflict(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| matches!(&*code, "40001" | "40P01"))
}
