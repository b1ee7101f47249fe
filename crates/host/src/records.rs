//! The folder of undo logs, lock files and guardians' sockets. It is not the folder of the control
//! sockets, in which a running peer may remove files.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use sys::process::{can_create_in, owns};

use crate::sockets::socket_path;

/// Only root can write here.
const FOLDER: &str = "/run/linerate/up";

/// The path of an interface's record. A user who may not use the folder above has the record beside
/// the socket. A record that exists there is used in any case.
pub fn path(interface: &str, extension: &str) -> PathBuf {
    let beside_socket = socket_path(interface).with_extension(extension);
    if beside_socket.exists() || !is_ours(Path::new(FOLDER)) {
        return beside_socket;
    }
    Path::new(FOLDER).join(format!("{interface}.{extension}"))
}

/// The socket at which the guardian of an interface accepts `linerate down`.
pub fn guardian_socket(interface: &str) -> PathBuf {
    path(interface, "guard")
}

/// The file that SaveConfig writes if the configuration file cannot be written.
pub fn rescue_file(interface: &str) -> PathBuf {
    path(interface, "conf")
}

/// The folder of a record, and the other folders where interfaces may have theirs.
pub fn folders(record: &Path) -> impl Iterator<Item = PathBuf> {
    let sockets = socket_path("").parent().map(Path::to_owned);
    let own = record.parent().map(Path::to_owned);
    let others = [PathBuf::from(FOLDER)].into_iter().chain(sockets);
    own.clone().into_iter().chain(others.filter(move |folder| Some(folder) != own.as_ref()))
}

/// Makes the folder of a record that is about to be written. Reading does not make one.
///
/// # Errors
/// This user may not make it.
pub fn make_folder(record: &Path) -> io::Result<()> {
    let folder = record.parent().expect("a record is in a folder");
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Whether this user owns the folder, or may make it.
fn is_ours(folder: &Path) -> bool {
    match folder.ancestors().find(|folder| folder.exists()) {
        Some(there) if there == folder => folder.is_dir() && owns(folder),
        Some(above) => above.is_dir() && can_create_in(above),
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
        assert!(is_ours(&inner) && !folder.exists(), "asking does not make it");
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
