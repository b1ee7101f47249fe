//! Errors of a node.

use std::{fmt, io, path::PathBuf};

use crate::StartError;

/// Why a program did not join.
#[derive(Debug)]
pub enum JoinError {
    /// The state folder cannot be used.
    State(PathBuf, io::Error),
    /// Another program uses the state folder.
    InUse(PathBuf),
    /// The tunnel did not start.
    Start(StartError),
    /// A login is required, but there is neither a key nor a handler of the login page.
    NeedsLogin,
    /// The join was refused, usually by the coordinator, with its message.
    Refused(String),
    /// The join took too long. The known problems of the node.
    TimedOut(Vec<String>),
    /// The agent ended. The log contains the reason.
    Ended,
}

/// Why a request to the agent failed.
#[derive(Debug)]
pub enum RequestError {
    /// The agent or the coordinator refused, with its message.
    Refused(String),
    /// The agent has ended. The log contains the reason.
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
            Self::NeedsLogin => f.write_str("this node must log in, but a key is missing"),
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
