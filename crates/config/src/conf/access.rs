//! What other users may do to the file that a configuration was read from.

use std::fmt;

use super::{Conf, ConfError, Reason};

/// What other users do with a file of theirs, or with one in a folder of theirs.
const WRITE: u32 = 0o022;
/// What any user may do.
const ANY_USER: u32 = 0o007;
/// Nobody replaces the files of others in such a folder but its owner.
const STICKY: u32 = 0o1000;

/// Why a user other than root and the one who reads a file may decide what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// The file's mode.
    FileMode(u32),
    /// The user that the file is of.
    FileOwner(u32),
    /// The mode of its folder.
    FolderMode(u32),
    /// The user that its folder is of.
    FolderOwner(u32),
}

/// Who may access a file or a folder.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The permission bits.
    pub mode: u32,
    /// The user's number.
    pub owner: u32,
}

impl Conf {
    /// Notes who may access the file that this was read from, and its folder, where `user` reads
    /// it: a file with keys that any user may read or write has a warning.
    pub fn note_access(&mut self, file: Access, folder: Access, user: u32) {
        if is_accessible(file, folder) {
            let (name, mode) = (&self.file_name, file.mode);
            self.warnings.insert(
                0,
                format!("{name}: any user may access this file and its keys (mode {mode:03o})"),
            );
        }
        self.writable = writable(file, folder, user);
    }

    /// Refuses a file with hooks where another user may write to it, or replace it.
    ///
    /// # Errors
    /// The first hook.
    pub fn without_writable_hooks(&self) -> Result<(), ConfError> {
        match (self.writable, self.hook_key) {
            (Some(writable), Some((line, key))) => {
                let reason = Reason::Writable(writable);
                Err(ConfError::new(&self.file_name, line, key, reason))
            }
            _ => Ok(()),
        }
    }
}

/// As wg-quick(8) has it: a folder that is closed to others closes the file.
fn is_accessible(file: Access, folder: Access) -> bool {
    file.mode & folder.mode & ANY_USER != 0
}

fn writable(file: Access, folder: Access, user: u32) -> Option<Writable> {
    let is_other = |owner: u32| owner != 0 && owner != user;
    let is_open = folder.mode & WRITE != 0 && folder.mode & STICKY == 0;
    if is_other(file.owner) {
        Some(Writable::FileOwner(file.owner))
    } else if file.mode & WRITE != 0 {
        Some(Writable::FileMode(file.mode))
    } else if is_other(folder.owner) {
        Some(Writable::FolderOwner(folder.owner))
    } else {
        is_open.then_some(Writable::FolderMode(folder.mode))
    }
}

impl fmt::Display for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no command is run from ")?;
        match self {
            Self::FileMode(mode) => {
                write!(f, "a file that other users may write to (mode {mode:03o})")
            }
            Self::FileOwner(user) => write!(f, "a file that another user owns (uid {user})"),
            Self::FolderMode(mode) => {
                write!(f, "a folder that other users may write to (mode {mode:03o})")
            }
            Self::FolderOwner(user) => write!(f, "a folder that another user owns (uid {user})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_all_but_root_and_the_user() {
        use Writable::{FileMode, FileOwner, FolderMode, FolderOwner};
        for (file, folder, wanted) in [
            ((0o600, 0), (0o755, 0), None),
            ((0o644, 5), (0o755, 5), None),
            ((0o644, 5), (0o755, 0), None),
            ((0o660, 0), (0o700, 0), Some(FileMode(0o660))),
            ((0o602, 0), (0o700, 0), Some(FileMode(0o602))),
            ((0o600, 6), (0o700, 0), Some(FileOwner(6))),
            ((0o600, 0), (0o775, 0), Some(FolderMode(0o775))),
            ((0o600, 0), (0o777, 0), Some(FolderMode(0o777))),
            ((0o600, 0), (0o1777, 0), None),
            ((0o600, 0), (0o1777, 6), Some(FolderOwner(6))),
            ((0o666, 0), (0o1777, 0), Some(FileMode(0o666))),
        ] {
            let access = |(mode, owner)| Access { mode, owner };
            assert_eq!(writable(access(file), access(folder), 5), wanted, "{file:?} in {folder:?}");
        }
    }

    #[test]
    fn a_closed_folder_closes_its_files() {
        for (file, folder, wanted) in [
            (0o644, 0o755, true),
            (0o644, 0o700, false),
            (0o640, 0o755, false),
            (0o602, 0o777, true),
        ] {
            let access = |mode| Access { mode, owner: 0 };
            assert_eq!(is_accessible(access(file), access(folder)), wanted, "{file:o} {folder:o}");
        }
    }
}
