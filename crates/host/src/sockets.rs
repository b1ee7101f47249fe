//! Where the sockets of running peers are.

use std::path::{Path, PathBuf};

/// Where the sockets of all userspace implementations are.
const FOLDER: &str = "/var/run/wireguard";
/// Where they are in a user's own folder for what runs.
const OWN_FOLDER: &str = "wireguard";

/// The path of an interface's socket.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.sock"))
}

/// Where the socket of a running peer is: with all others, or in the user's own folder.
pub fn find_socket(name: &str) -> PathBuf {
    let mut places = folders().map(|folder| folder.join(format!("{name}.sock")));
    places.find(|path| path.exists()).unwrap_or_else(|| socket_path(name))
}

/// Where sockets are: the folder of all, and that of a user without rights.
pub fn folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join(OWN_FOLDER));
    [PathBuf::from(FOLDER)].into_iter().chain(own)
}
