//! Why a program is no node.

use std::{fmt, io, path::PathBuf};

use crate::StartError;

/// Why a program did not join.
#[derive(Debug)]
pub enum JoinError {
    /// The folder of the state cannot be used.
    State(PathBuf, io::Error),
    /// Another program uses the folder of the state.
    InUse(PathBuf),
    /// The tunnel did not start.
    Start(StartError),
    /// Somebody has to log in, and there is neither a key nor anybody who is told the page.
    NeedsLogin,
    /// It was refused, mostly by the coordinator, in its words.
    Refused(String),
    /// It took too long; what is in the way, as far as it is known.
    TimedOut(Vec<String>),
    /// The agent ended; the log says why.
    Ended,
}

/// Why the agent did not do what it was asked.
#[derive(Debug)]
pub enum RequestError {
    /// It refused, in its words or the coordinator's.
    Refused(String),
    /// It has ended; the log says why.
    Ended,
}

impl From<RequestError> for JoinError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(why) => Self::Refused(why),
            RequestError::Ended => Self::Ended,
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(folder, error) => write!(f, "{}: {error}", folder.display()),
            Self::InUse(folder) => {
                write!(f, "{}: another program uses this state", folder.display())
            }
            Self::Start(error) => error.fmt(f),
            Self::NeedsLogin => f.write_str("this node has to log in, and there is no key"),
            Self::Refused(why) => f.write_str(why),
            Self::TimedOut(why) if why.is_empty() => f.write_str("not connected in time"),
            Self::TimedOut(why) => write!(f, "not connected in time: {}", why.join("; ")),
            Self::Ended => RequestError::Ended.fmt(f),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Ended => f.write_str("the tailnet's agent has ended"),
        }
    }
}

impl std::error::Error for JoinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::State(_, error) => Some(error),
            Self::Start(error) => Some(error),
            _ => None,
        }
    }
}

impl std::error::Error for RequestError {}
