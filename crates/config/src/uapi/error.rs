//! Errors in requests.

use std::{borrow::Cow, fmt};

use nix::errno::Errno;

use crate::ValueError;

/// An error in a request. No part of the request was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UapiError {
    /// The line of the request, from 1.
    pub line: usize,
    /// The key of that line, if it has one.
    pub key: Option<Cow<'static, str>>,
    /// The error in the line.
    pub reason: Reason,
}

/// The error in a line of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first line is not a known verb.
    UnknownVerb,
    /// Lines after a verb without arguments, or after the empty line.
    TrailingLines,
    /// A line without `=`.
    NotAPair,
    /// An unknown key.
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
    /// The error number of the reply: `EINVAL` for a value, `EPROTO` for a syntax error.
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
