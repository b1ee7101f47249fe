//! Files that are refused.

use std::{borrow::Cow, fmt};

use ipnet::IpNet;

use super::{Section, Writable, write::write_allowed_ips};
use crate::ValueError;

/// Why a file is refused, shown as `FILE:LINE: KEY: reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfError {
    file_name: String,
    fault: Fault,
}

/// A [`ConfError`] before it knows its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    /// The key or the section of that line, where it has one.
    pub(super) key: Option<Cow<'static, str>>,
    pub(super) reason: Reason,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A line that is neither section nor `key = value`.
    NotAPair,
    /// A section that the format does not have, and the one probably meant.
    UnknownSection(Option<&'static str>),
    /// A key that the format does not have, and the one probably meant.
    UnknownKey(Option<&'static str>),
    /// A key that belongs in this other section.
    WrongSection(Section),
    /// A key before the first section.
    NoSection,
    /// A second value, the first being in this line.
    Duplicate(usize),
    /// A network after `!` or `-`, to be excluded from the others of its peer.
    Exception {
        /// The networks without it.
        instead: Vec<IpNet>,
    },
    /// Bytes that are not UTF-8, outside a comment.
    NotText,
    /// A key that a section has to have.
    Missing(Section),
    /// There is no `[Interface]`.
    NoInterface,
    /// A key that only `linerate proxy` understands.
    ProxyOnly,
    /// A key that only `linerate up` understands.
    UpOnly,
    /// A key that means nothing without this.
    Needs(&'static str),
    /// A key that does nothing beside this line.
    NoEffect(&'static str),
    /// A hook in a file that another user may write to.
    Writable(Writable),
    /// A value that is not what its key wants.
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

    /// What is wrong with it.
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
                f.write_str("a peer has no exceptions: instead of networks with ! or -, write ")?;
                write_list(f, instead)
            }
            Self::NotText => f.write_str("bytes that are not UTF-8, outside a comment"),
            Self::Missing(section) => write!(f, "missing in this {section}"),
            Self::NoInterface => f.write_str("missing section"),
            Self::ProxyOnly => f.write_str("only `linerate proxy` understands this key"),
            Self::UpOnly => f.write_str("only `linerate up` understands this key"),
            Self::Needs(key) => write!(f, "this key means nothing without {key}"),
            Self::NoEffect(line) => write!(f, "this key does nothing beside {line}"),
            Self::Writable(writable) => writable.fmt(f),
            Self::Value(error) => error.fmt(f),
        }
    }
}

/// Writes the whole list. The user can copy it into the file.
fn write_list(f: &mut fmt::Formatter<'_>, nets: &[IpNet]) -> fmt::Result {
    match nets {
        [] => f.write_str("nothing: no address is left"),
        nets => write_allowed_ips(f, nets),
    }
}
