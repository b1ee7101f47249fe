//! The folder of undo logs, lock files and guardians' sockets. It differs from the folder of the
//! control sockets, in which a running peer may remove files.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use sys::process::{can_create_in, owns};

use crate::sockets::socket_path;

/// Only root can write to this folder.
const FOLDER: &str = "/run/linerate/up";

/// The path of an interface's record. Users without access to the folder above have it next to the
/// control socket. An existing record next to the socket takes precedence.
pub(crate) fn path(interface: &str, extension: &str) -> PathBuf {
    let next_to_socket = socket_path(interface).with_extension(extension);
    if next_to_socket.exists() || !is_usable(Path::new(FOLDER)) {
        return next_to_socket;
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

/// The folder of a record, and the other folders that may contain records of interfaces.
pub(crate) fn folders(record: &Path) -> impl Iterator<Item = PathBuf> {
    let sockets = socket_path("").parent().map(Path::to_owned);
    let own = record.parent().map(Path::to_owned);
    let others = [PathBuf::from(FOLDER)].into_iter().chain(sockets);
    own.clone().into_iter().chain(others.filter(move |folder| Some(folder) != own.as_ref()))
}

/// Creates the folder of a record, before the record is written.
///
/// # Errors
/// This user may not create it.
pub(crate) fn make_folder(record: &Path) -> io::Result<()> {
    let folder = record.parent().expect("a record is in a folder");
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Whether this user owns the folder or may create it.
fn is_usable(folder: &Path) -> bool {
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
    fn folder_is_private_to_its_user() {
        let folder = std::env::temp_dir().join(format!("linerate-records-{}", std::process::id()));
        let inner = folder.join("up");
        assert!(is_usable(&inner) && !folder.exists(), "the check does not create it");
        make_folder(&inner.join("wg0.undo")).unwrap();
        make_folder(&inner.join("wg0.lock")).unwrap();
        assert!(is_usable(&inner));
        for folder in [&folder, &inner] {
            assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        }
        fs::write(folder.join("file"), "").unwrap();
        let no_folder = folder.join("file");
        assert!(
            !is_usable(&no_folder) && !is_usable(&no_folder.join("up")),
            "a file is not a folder"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
