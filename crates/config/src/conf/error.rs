//! Errors in files.

use std::{borrow::Cow, fmt};

use ipnet::IpNet;

use super::{Section, Writable, write::write_allowed_ips};
use crate::ValueError;

/// An error in a file, displayed as `FILE:LINE: KEY: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfError {
    file_name: String,
    fault: Fault,
}

/// A [`ConfError`] without the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    /// The key or the section of that line, if it has one.
    pub(super) key: Option<Cow<'static, str>>,
    pub(super) reason: Reason,
}

/// The error in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A line that is neither a section nor `key = value`.
    NotAPair,
    /// An unknown section, and the one that was probably meant.
    UnknownSection(Option<&'static str>),
    /// An unknown key, and the one that was probably meant.
    UnknownKey(Option<&'static str>),
    /// A key of this other section.
    WrongSection(Section),
    /// A key before the first section.
    NoSection,
    /// A second value of a key; the first is in this line.
    Duplicate(usize),
    /// A network after `!` or `-`, which wg-quick(8) subtracts from the other networks of the peer.
    Exception {
        /// The remaining networks.
        instead: Vec<IpNet>,
    },
    /// Bytes that are not UTF-8, outside a comment.
    NotText,
    /// A required key of this section.
    Missing(Section),
    /// The file lacks `[Interface]`.
    NoInterface,
    /// A key that only `linerate proxy` understands.
    ProxyOnly,
    /// A key that only `linerate up` understands.
    UpOnly,
    /// A key that has an effect only together with this one.
    Needs(&'static str),
    /// A key that cannot be used together with this line.
    NoEffect(&'static str),
    /// A hook in a file that another user can change.
    Writable(Writable),
    /// An invalid value.
    Value(ValueError),
}

impl ConfError {
    pub(super) fn new(file_name: &str, line: usize, key: &'static str, reason: Reason) -> Self {
        Fault { line, key: Some(Cow::Borrowed(key)), reason }.in_file(file_name)
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.fault.line
    }

    /// The error in the line.
    pub fn reason(&self) -> &Reason {
        &self.fault.reason
    }
}

impl Fault {
    pub(super) fn in_file(self, file_name: &str) -> ConfError {
        ConfError { file_name: file_name.to_owned(), fault: self }
    }
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file_name, fault: Fault { line, key, reason } } = self;
        write!(f, "{file_name}:{line}: ")?;
        if let Some(key) = key {
            write!(f, "{key}: ")?;
        }
        reason.fmt(f)
    }
}

impl std::error::Error for ConfError {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPair => f.write_str("neither a [Section] nor of the form key = value"),
            Self::UnknownSection(None) => {
                f.write_str("unknown section; there are [Interface] and [Peer]")
            }
            Self::UnknownSection(Some(meant)) => {
                write!(f, "unknown section; did you mean {meant}?")
            }
            Self::UnknownKey(None) => f.write_str("unknown key"),
            Self::UnknownKey(Some(meant)) => write!(f, "unknown key; did you mean {meant}?"),
            Self::WrongSection(section) => write!(f, "this key belongs in {section}"),
            Self::NoSection => f.write_str("a key before the first [Interface] or [Peer]"),
            Self::Duplicate(first) => write!(f, "already given in line {first}"),
            Self::Exception { instead } => {
                f.write_str("networks with ! or - are not supported; write instead: ")?;
                write_list(f, instead)
            }
            Self::NotText => f.write_str("bytes that are not UTF-8, outside a comment"),
            Self::Missing(section) => write!(f, "missing in this {section}"),
            Self::NoInterface => f.write_str("missing section"),
            Self::ProxyOnly => f.write_str("only `linerate proxy` uses this key"),
            Self::UpOnly => f.write_str("only `linerate up` uses this key"),
            Self::Needs(key) => write!(f, "this key requires {key}"),
            Self::NoEffect(line) => write!(f, "this key cannot be used together with {line}"),
            Self::Writable(writable) => writable.fmt(f),
            Self::Value(error) => error.fmt(f),
        }
    }
}

/// Writes the whole list, so that the user can copy it into the file.
fn write_list(f: &mut fmt::Formatter<'_>, nets: &[IpNet]) -> fmt::Result {
    match nets {
        [] => f.write_str("no AllowedIPs, because no address remains"),
        nets => write_allowed_ips(f, nets),
    }
}
