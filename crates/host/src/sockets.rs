//! Paths of the control sockets of running peers.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Folder of the sockets of all userspace implementations.
const FOLDER: &str = "/var/run/wireguard";
/// Folder of the sockets below `XDG_RUNTIME_DIR`.
const OWN_FOLDER: &str = "wireguard";

/// The path of an interface's socket.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.sock"))
}

/// The socket of a running peer, in the common folder or in that of the user. Sockets without a
/// listening process, left by a killed peer, are skipped.
pub fn find_socket(name: &str) -> PathBuf {
    let mut paths = folders().map(|folder| folder.join(format!("{name}.sock")));
    let answers = |path: &PathBuf| UnixStream::connect(path).is_ok();
    paths.find(answers).unwrap_or_else(|| socket_path(name))
}

/// The folders of sockets: the common one, and that of an unprivileged user.
pub fn folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join(OWN_FOLDER));
    [PathBuf::from(FOLDER)].into_iter().chain(own)
}
