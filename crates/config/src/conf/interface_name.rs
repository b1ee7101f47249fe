//! The name of an interface, which is the name of its file.

use std::{fmt, path::Path};

/// Bytes of an interface's name at most (`IFNAMSIZ` less its end).
const NAME_MAX: usize = 15;

/// A name that Linux and wg-quick(8) take for an interface: 1 to 15 characters
/// of `a`-`z`, `A`-`Z`, `0`-`9`, `_`, `=`, `+`, `.` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(String);

/// Why a text is no interface's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The file's name does not end in `.conf`.
    NoConfSuffix,
    /// Empty.
    Empty,
    /// More than 15 characters; their number.
    TooLong(usize),
    /// A character that is not allowed.
    Character(char),
    /// `.` or `..`, which Linux forbids.
    Dots,
}

impl InterfaceName {
    /// Takes `name` if it is one.
    ///
    /// # Errors
    /// It is none.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_=+.-".contains(c);
        if let Some(c) = name.chars().find(|&c| !allowed(c)) {
            return Err(NameError::Character(c));
        }
        match name {
            "" => Err(NameError::Empty),
            "." | ".." => Err(NameError::Dots),
            _ if name.len() > NAME_MAX => Err(NameError::TooLong(name.len())),
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// The name in `/etc/wireguard/NAME.conf`, or wherever the file is.
    ///
    /// # Errors
    /// The file is not named after an interface.
    pub fn from_path(path: &Path) -> Result<Self, NameError> {
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        // What is not UTF-8 became U+FFFD, which `new` refuses.
        Self::new(file_name.strip_suffix(".conf").ok_or(NameError::NoConfSuffix)?)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConfSuffix => {
                f.write_str("a configuration file is named after its interface: NAME.conf")
            }
            Self::Empty => f.write_str("an interface's name is not empty"),
            Self::TooLong(length) => {
                write!(f, "an interface's name has at most {NAME_MAX} characters, not {length}")
            }
            Self::Character(c) => {
                write!(f, "an interface's name has only a-z A-Z 0-9 _ = + . - and not {c:?}")
            }
            Self::Dots => f.write_str("an interface's name is not . or .."),
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn a_file_is_named_after_its_interface() {
        for (path, name) in [
            ("/etc/wireguard/wg0.conf", "wg0"),
            ("wg0.conf", "wg0"),
            ("./a.b-c_d=e+F.conf", "a.b-c_d=e+F"),
            ("wg0.conf.conf", "wg0.conf"),
            ("123456789012345.conf", "123456789012345"),
        ] {
            assert_eq!(InterfaceName::from_path(Path::new(path)).unwrap().as_str(), name);
        }
    }

    #[test]
    fn other_file_names_are_refused() {
        for (path, error) in [
            ("", NameError::NoConfSuffix),
            ("/", NameError::NoConfSuffix),
            ("wg0", NameError::NoConfSuffix),
            ("wg0.CONF", NameError::NoConfSuffix),
            ("dir.conf/wg0", NameError::NoConfSuffix),
            (".conf", NameError::Empty),
            ("..conf", NameError::Dots),
            ("...conf", NameError::Dots),
            ("1234567890123456.conf", NameError::TooLong(16)),
            ("wg 0.conf", NameError::Character(' ')),
            ("wg\u{e9}.conf", NameError::Character('\u{e9}')),
        ] {
            assert_eq!(InterfaceName::from_path(Path::new(path)), Err(error), "{path}");
        }
        let not_utf8 = Path::new(OsStr::from_bytes(b"wg\xff.conf"));
        assert_eq!(InterfaceName::from_path(not_utf8), Err(NameError::Character('\u{fffd}')));
    }
}
