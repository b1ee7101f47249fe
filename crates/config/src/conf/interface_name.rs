//! Names of interfaces. The file `NAME.conf` configures the interface `NAME`.

use std::{fmt, path::Path};

/// Longest name of an interface in bytes (`IFNAMSIZ` without the terminating zero).
const NAME_MAX: usize = 15;

/// A name that Linux and wg-quick(8) accept for an interface: 1 to 15 characters
/// of `a`-`z`, `A`-`Z`, `0`-`9`, `_`, `=`, `+`, `.` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(String);

/// An invalid name of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The file's name does not end in `.conf`.
    NoConfSuffix,
    /// Empty.
    Empty,
    /// More than 15 characters; contains their number.
    TooLong(usize),
    /// A character that is not allowed.
    Character(char),
    /// `.` or `..`, which Linux forbids.
    Dots,
}

impl InterfaceName {
    /// Checks `name`.
    ///
    /// # Errors
    /// The name is invalid.
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

    /// The name in `/etc/wireguard/NAME.conf`. The folder does not matter.
    ///
    /// # Errors
    /// The file is not named after an interface.
    pub fn from_path(path: &Path) -> Result<Self, NameError> {
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        // Invalid UTF-8 became U+FFFD, which `new` refuses.
        Self::new(file_name.strip_suffix(".conf").ok_or(NameError::NoConfSuffix)?)
    }

    /// The name for a proxy's file, which may have any name. If [`InterfaceName::from_path`] refuses it,
    /// the result consists of the allowed characters and a hash of the file name.
    pub fn of_any_file(path: &Path) -> Self {
        Self::from_path(path).unwrap_or_else(|_| {
            let file_name = path.file_name().unwrap_or_default().to_string_lossy();
            let stem = file_name.strip_suffix(".conf").unwrap_or(&file_name);
            Self::new(stem).unwrap_or_else(|_| Self::shortened(stem))
        })
    }

    fn shortened(text: &str) -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let number = format!("-{:04x}", fnv1a(text) & 0xffff);
        let begin: String = text.chars().map(allowed).take(NAME_MAX - number.len()).collect();
        let begin = begin.trim_matches('-');
        Self(format!("{}{number}", if begin.is_empty() { "proxy" } else { begin }))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The FNV-1a hash of a text. It is the same in each run.
pub fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
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
    fn interface_name_is_the_file_name() {
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
    fn any_file_name_gives_a_proxy_a_valid_name() {
        for (path, name) in [
            ("/etc/wireguard/wg0.conf", "wg0"),
            ("wg0", "wg0"),
            ("/dev/fd/63", "63"),
            ("mullvad-de-berlin-001.conf", "mullvad-de-4bc3"),
            ("My VPN (Berlin).conf", "My-VPN--Be-408e"),
            ("\u{e9}\u{e9}.conf", "proxy-c21d"),
            (".conf", "proxy-9dc5"),
            ("..", "proxy-9dc5"),
        ] {
            let made = InterfaceName::of_any_file(Path::new(path));
            assert_eq!(made.as_str(), name, "{path}");
            assert!(InterfaceName::new(made.as_str()).is_ok(), "{path}");
        }
        let [one, other] = ["mullvad-de-berlin-001.conf", "mullvad-de-berlin-002.conf"];
        let made = |path| InterfaceName::of_any_file(Path::new(path));
        assert_ne!(made(one), made(other));
    }

    #[test]
    fn invalid_file_names_are_refused() {
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
