//! Where the sockets of running peers are.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Where the sockets of all userspace implementations are.
const FOLDER: &str = "/var/run/wireguard";
/// Their folder below `XDG_RUNTIME_DIR`.
const OWN_FOLDER: &str = "wireguard";

/// The path of an interface's socket.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.sock"))
}

/// The socket of a running peer: in the common folder, or in the user's own. The file of a killed
/// peer's socket remains, but nothing listens there.
pub fn find_socket(name: &str) -> PathBuf {
    let mut places = folders().map(|folder| folder.join(format!("{name}.sock")));
    let answers = |path: &PathBuf| UnixStream::connect(path).is_ok();
    places.find(answers).unwrap_or_else(|| socket_path(name))
}

/// The folders of sockets: the common one, and that of a user without rights.
pub fn folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join(OWN_FOLDER));
    [PathBuf::from(FOLDER)].into_iter().chain(own)
}
