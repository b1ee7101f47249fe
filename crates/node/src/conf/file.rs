//! A configuration that is read from a file, and what other users may do to it.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use anyhow::Context;
use sys::opened::{Opened, effective_user, open_in_folder};
use zeroize::Zeroizing;

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

/// Mode and owner.
#[derive(Clone, Copy)]
struct Access {
    mode: u32,
    owner: u32,
}

impl Conf {
    /// Reads a file, whose path has no symbolic link at its end. A file with keys that any user
    /// may read or write has a warning.
    ///
    /// # Errors
    /// It cannot be read, or the first fault found. No error text holds a key.
    pub fn read_file(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let read = || -> io::Result<_> {
            let Opened { mut file, folder } = open_in_folder(path)?;
            let (of_file, of_folder) = (Access::of(&file)?, Access::of(&folder)?);
            // At once, since one that grows leaves keys behind where it was.
            let len = file.metadata()?.len().try_into().unwrap_or(0);
            let mut text = Zeroizing::new(String::with_capacity(len + 1));
            file.read_to_string(&mut text)?;
            Ok((text, of_file, of_folder))
        };
        let (text, file, folder) = read().with_context(|| name.clone())?;
        let mut conf = Self::parse(&name, &text)?;
        if is_accessible(file, folder) {
            let mode = file.mode;
            conf.warnings.insert(
                0,
                format!("{name}: any user may access this file and its keys (mode {mode:03o})"),
            );
        }
        conf.writable = writable(file, folder, effective_user());
        Ok(conf)
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

impl Access {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { mode: metadata.mode() & 0o7777, owner: metadata.uid() })
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
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown},
        path::PathBuf,
    };

    use super::*;

    const KEY: &str = "PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

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

    struct Folder(PathBuf);

    impl Folder {
        fn read(&self, text: &str, mode: u32) -> Conf {
            let path = self.0.join("wg0.conf");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Conf::read_file(&path).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn hooks_are_refused_by_their_first_line_and_a_file_without_them_is_warned_of() {
        let folder =
            Folder(std::env::temp_dir().join(format!("linerate-conf-{}", std::process::id())));
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        let hooks = format!("[Interface]\n{KEY}\nMTU = 1400\npostdown = true\nPreUp = true\n");
        folder.read(&hooks, 0o644).without_writable_hooks().unwrap();
        let conf = folder.read(&hooks, 0o664);
        let path = folder.0.join("wg0.conf").display().to_string();
        assert_eq!(
            conf.without_writable_hooks().unwrap_err().to_string(),
            format!(
                "{path}:4: PostDown: no command is run from a file that other users may write to \
                 (mode 664)"
            )
        );
        let conf = folder.read(&format!("[Interface]\n{KEY}\nPostUp =\n"), 0o666);
        conf.without_writable_hooks().unwrap();
        let warning = format!("{path}: any user may access this file and its keys (mode 666)");
        assert_eq!(conf.warnings, [warning]);
        assert!(folder.read(&hooks, 0o640).warnings.is_empty());

        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let error = folder.read(&hooks, 0o600).without_writable_hooks().unwrap_err();
        assert_eq!(*error.reason(), Reason::Writable(Writable::FolderMode(0o777)));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        if chown(&path, Some(12_345), None).is_ok() {
            let error = folder.read(&hooks, 0o600).without_writable_hooks().unwrap_err();
            assert_eq!(*error.reason(), Reason::Writable(Writable::FileOwner(12_345)));
        } else {
            skips::skip("root");
        }
    }
}
