//! Requests that are refused.

use std::{borrow::Cow, fmt};

use nix::errno::Errno;

use crate::ValueError;

/// Why a request is refused. None of it was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UapiError {
    /// The line of the request, from 1.
    pub line: usize,
    /// The key of that line, where it has one.
    pub key: Option<Cow<'static, str>>,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with a line of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first line is no verb.
    UnknownVerb,
    /// Lines after a verb that takes none, or after the empty line.
    TrailingLines,
    /// No `=` in the line.
    NotAPair,
    /// A key that the protocol does not have.
    UnknownKey,
    /// A peer's key before the first `public_key`.
    NoPeer,
    /// A device's key after the first `public_key`.
    DeviceKeyAfterPeer,
    /// A `protocol_version` other than 1.
    ProtocolVersion,
    /// An invalid value.
    Value(ValueError),
}

impl UapiError {
    /// The number to answer with: `EINVAL` for a value, `EPROTO` for form.
    pub fn errno(&self) -> i32 {
        let errno =
            if matches!(self.reason, Reason::Value(_)) { Errno::EINVAL } else { Errno::EPROTO };
        errno as i32
    }
}

impl fmt::Display for UapiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        self.reason.fmt(f)
    }
}

impl std::error::Error for UapiError {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownVerb => {
                "a request starts with get=1, set=1, linerate-stats=1, linerate-down=1, \
                 linerate-ping=1, linerate-capture=1 or linerate-offload=1"
            }
            Self::TrailingLines => "the request should have ended before this line",
            Self::NotAPair => "not of the form key=value",
            Self::UnknownKey => "unknown key",
            Self::NoPeer => "a key of a peer, before any public_key",
            Self::DeviceKeyAfterPeer => "a key of the device, after a public_key",
            Self::ProtocolVersion => "the only protocol version is 1",
            Self::Value(error) => return error.fmt(f),
        })
    }
}

impl From<ValueError> for Reason {
    fn from(error: ValueError) -> Self {
        Self::Value(error)
    }
}
