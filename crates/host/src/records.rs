//! The folder of what is written down of interfaces while they are up: not that of their sockets,
//! in which a running peer may remove files.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use sys::process::{may_make_in, owns};

use crate::sockets::socket_path;

/// Root's lock.
const FOLDER: &str = "/run/linerate/up";

/// Where a record of an interface is, or is to be. Who may not have the folder has that of the
/// sockets; and where one is there already, left by such a one, it is that.
pub fn path(interface: &str, extension: &str) -> PathBuf {
    let beside_socket = socket_path(interface).with_extension(extension);
    if beside_socket.exists() || !is_ours(Path::new(FOLDER)) {
        return beside_socket;
    }
    Path::new(FOLDER).join(format!("{interface}.{extension}"))
}

/// The folder of a record, and wherever else other interfaces may have theirs.
pub fn folders(record: &Path) -> impl Iterator<Item = PathBuf> {
    let sockets = socket_path("").parent().map(Path::to_owned);
    let own = record.parent().map(Path::to_owned);
    let others = [PathBuf::from(FOLDER)].into_iter().chain(sockets);
    own.clone().into_iter().chain(others.filter(move |folder| Some(folder) != own.as_ref()))
}

/// Makes the folder of a record that is about to be written. Who only reads makes none.
///
/// # Errors
/// This user may not.
pub fn make_folder(record: &Path) -> io::Result<()> {
    let folder = record.parent().expect("a record is in a folder");
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Whether the folder is this user's, or will be once it is made.
fn is_ours(folder: &Path) -> bool {
    match folder.ancestors().find(|folder| folder.exists()) {
        Some(there) if there == folder => folder.is_dir() && owns(folder),
        Some(above) => above.is_dir() && may_make_in(above),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn the_folder_is_its_users_alone() {
        let folder = std::env::temp_dir().join(format!("linerate-records-{}", std::process::id()));
        let inner = folder.join("up");
        assert!(is_ours(&inner) && !folder.exists(), "who asks makes none");
        make_folder(&inner.join("wg0.undo")).unwrap();
        make_folder(&inner.join("wg0.lock")).unwrap();
        assert!(is_ours(&inner));
        for folder in [&folder, &inner] {
            assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        }
        fs::write(folder.join("file"), "").unwrap();
        let no_folder = folder.join("file");
        assert!(!is_ours(&no_folder) && !is_ours(&no_folder.join("up")), "it is no folder");
        fs::remove_dir_all(folder).unwrap();
    }
}
