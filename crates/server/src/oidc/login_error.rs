//! Failures of a login.

use std::fmt;

/// Why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginError {
    /// The provider does not answer.
    Unreachable,
    /// Its answer is unusable. The log has the reason.
    Broken(&'static str),
    /// Its answer cannot be trusted.
    Untrusted(&'static str),
    /// The login has expired, was finished, or belongs to another browser.
    Stale,
    /// The registration does not wait any more.
    NoMachine,
    /// The SSH login does not wait any more.
    NoLogin,
    /// The SSH login belongs to another user.
    OtherUser,
    /// The mail address is required, but not verified.
    Unverified,
    /// The user is not allowed.
    NotAllowed,
}

impl LoginError {
    /// Logs a fault of the provider.
    pub(super) fn broken(
        what: &'static str,
        why: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        tracing::warn!("OIDC: {what}: {:#}", anyhow::Error::new(why));
        Self::Broken(what)
    }
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("The login provider cannot be reached at the moment."),
            Self::Broken(what) | Self::Untrusted(what) => {
                write!(f, "The login provider's answer cannot be used: {what}.")
            }
            Self::Stale => f.write_str(
                "This login has expired, has ended, or was started in another browser. Open the machine's \
                 link again.",
            ),
            Self::NoMachine => f.write_str(
                "This link is not valid any more: the machine was admitted, or it waited too long. Log in \
                 on the machine again to get a new link.",
            ),
            Self::NoLogin => f.write_str(
                "This link is not valid any more: the login was confirmed, or it waited too long. Log in \
                 again to get a new link.",
            ),
            Self::OtherUser => f.write_str(
                "The login comes from a machine of another user. Only that user can confirm \
                 it.",
            ),
            Self::Unverified => {
                f.write_str("The login provider has not verified this account's e-mail address.")
            }
            Self::NotAllowed => f.write_str("This account is not allowed in this network."),
        }
    }
}
