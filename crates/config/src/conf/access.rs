//! Access of other users to the file that a configuration was read from.

use std::fmt;

use super::{Conf, ConfError, Reason};

/// Access of other users to their own file, or to a file in their own folder.
const WRITE: u32 = 0o022;
/// Access of any user.
const ANY_USER: u32 = 0o007;
/// In a folder with this bit, only a file's owner or the folder's owner can replace the file.
const STICKY: u32 = 0o1000;

/// Why another user than root and the reader can change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// The file's mode.
    FileMode(u32),
    /// The user that owns the file.
    FileOwner(u32),
    /// The mode of its folder.
    FolderMode(u32),
    /// The user that owns the folder.
    FolderOwner(u32),
}

/// Access rights of the file that a configuration was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    file: Access,
    folder: Access,
    /// The users, in addition to root, that may own a file with hooks: the user that reads the file,
    /// and those that this user allowed.
    trusted: Vec<u32>,
}

/// Owner and access rights of a file or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The permission bits.
    pub mode: u32,
    /// The user ID of the owner.
    pub owner: u32,
}

impl Conf {
    /// Stores the access rights of the file that this was read from by `user`, and those of its folder.
    /// Adds a warning if the file has keys and any user may read or write it.
    pub fn note_access(&mut self, file: Access, folder: Access, user: u32) {
        if is_accessible(file, folder) {
            let (name, mode) = (&self.file_name, file.mode);
            self.warnings.insert(
                0,
                format!("{name}: any user may access this file and its keys (mode {mode:03o})"),
            );
        }
        self.origin = Some(Origin { file, folder, trusted: vec![user] });
    }

    /// Allows hooks even if these users own the file or its folder. Their commands run with the
    /// rights of the user that reads the file. A file or folder that other users may write to is
    /// still refused.
    pub fn allow_hooks_of(&mut self, users: &[u32]) {
        self.origin.iter_mut().for_each(|origin| origin.trusted.extend(users));
    }

    /// Refuses a file with hooks that another user may write to or replace.
    ///
    /// # Errors
    /// The first hook.
    pub fn without_writable_hooks(&self) -> Result<(), ConfError> {
        match (self.origin.as_ref().and_then(Origin::writable), self.hook_key) {
            (Some(writable), Some((line, key))) => {
                let reason = Reason::Writable(writable);
                Err(ConfError::new(&self.file_name, line, key, reason))
            }
            _ => Ok(()),
        }
    }
}

/// Like wg-quick(8), treats a file in a folder without access for others as private.
fn is_accessible(file: Access, folder: Access) -> bool {
    file.mode & folder.mode & ANY_USER != 0
}

impl Origin {
    fn writable(&self) -> Option<Writable> {
        let Self { file, folder, trusted } = self;
        let is_other = |owner: u32| owner != 0 && !trusted.contains(&owner);
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
}

impl fmt::Display for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no command is run from ")?;
        match self {
            Self::FileMode(mode) => {
                write!(f, "a file that other users may write to (mode {mode:03o})")?;
            }
            Self::FileOwner(user) => write!(f, "a file that another user owns (uid {user})")?,
            Self::FolderMode(mode) => {
                write!(f, "a folder that other users may write to (mode {mode:03o})")?;
            }
            Self::FolderOwner(user) => write!(f, "a folder that another user owns (uid {user})")?,
        }
        match self {
            Self::FileMode(_) | Self::FolderMode(_) => f.write_str("; allow it by `chmod go-w`"),
            Self::FileOwner(user) | Self::FolderOwner(user) => write!(
                f,
                "; allow it by `chown root`, or trust that user: `linerate up --allow-hooks-of \
                 {user}`"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_other_than_root_and_the_reader_are_others() {
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
            assert_eq!(writable(file, folder, &[5]), wanted, "{file:?} in {folder:?}");
        }
    }

    fn writable(file: (u32, u32), folder: (u32, u32), trusted: &[u32]) -> Option<Writable> {
        let [file, folder] = [file, folder].map(|(mode, owner)| Access { mode, owner });
        Origin { file, folder, trusted: trusted.to_vec() }.writable()
    }

    #[test]
    fn trusted_user_may_own_file_and_folder_but_not_share_them() {
        use Writable::{FileMode, FileOwner, FolderMode, FolderOwner};
        for (file, folder, wanted) in [
            ((0o600, 6), (0o755, 6), None),
            ((0o600, 0), (0o755, 6), None),
            ((0o600, 7), (0o755, 6), Some(FileOwner(7))),
            ((0o600, 6), (0o755, 7), Some(FolderOwner(7))),
            ((0o664, 6), (0o755, 6), Some(FileMode(0o664))),
            ((0o600, 6), (0o775, 6), Some(FolderMode(0o775))),
        ] {
            assert_eq!(writable(file, folder, &[0, 6]), wanted, "{file:?} in {folder:?}");
        }
    }

    #[test]
    fn hooks_of_another_user_are_refused_with_the_option_that_allows_them() {
        let access = Access { mode: 0o644, owner: 1000 };
        let mut conf = Conf::parse("wg0.conf", "[Interface]\nPostUp = true\n").unwrap();
        conf.note_access(access, access, 0);
        let refused = conf.without_writable_hooks().unwrap_err().to_string();
        assert_eq!(
            refused,
            "wg0.conf:2: PostUp: no command is run from a file that another user owns (uid 1000); \
             allow it by `chown root`, or trust that user: `linerate up --allow-hooks-of 1000`"
        );
        conf.allow_hooks_of(&[1001]);
        assert!(conf.without_writable_hooks().is_err());
        conf.allow_hooks_of(&[1000]);
        conf.without_writable_hooks().unwrap();
    }

    #[test]
    fn file_in_a_private_folder_is_private() {
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
