//! Why a login does not succeed.

use std::fmt;

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The provider does not answer.
    Unreachable,
    /// What it says cannot be used; the log has why.
    Broken(&'static str),
    /// What it says is not to be believed.
    Untrue(&'static str),
    /// The login has taken too long, was finished, or is another browser's.
    Stale,
    /// No machine waits.
    NoMachine,
    /// No login by SSH waits.
    NoLogin,
    /// It is another's.
    OtherUser,
    /// The user's address decides, and nobody has verified it.
    Unverified,
    /// The user is none of this network's.
    NotAllowed,
}

impl Trouble {
    /// A provider's fault, which is logged.
    pub fn broken(what: &'static str, why: impl std::error::Error + Send + Sync + 'static) -> Self {
        tracing::warn!("OIDC: {what}: {:#}", anyhow::Error::new(why));
        Self::Broken(what)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("The login provider cannot be reached now."),
            Self::Broken(what) | Self::Untrue(what) => {
                write!(f, "The login provider's answer cannot be used: {what}.")
            }
            Self::Stale => f.write_str(
                "This login has ended, took too long, or began in another browser. Open the \
                 machine's link again.",
            ),
            Self::NoMachine => f.write_str(
                "No machine waits under this link: it was let in, or it waited too long. Log in on \
                 the machine again for a new one.",
            ),
            Self::NoLogin => f.write_str(
                "No login waits under this link: it was confirmed, or it waited too long. Log in \
                 again for a new one.",
            ),
            Self::OtherUser => f.write_str(
                "The login comes from a machine that is not this account's. Its own user can \
                 confirm it.",
            ),
            Self::Unverified => {
                f.write_str("The login provider has not verified this account's e-mail address.")
            }
            Self::NotAllowed => f.write_str("This account is not allowed in this network."),
        }
    }
}
