//! Unix sockets to which only their user may connect.

use std::{
    io,
    os::{fd::AsRawFd as _, unix::net::UnixListener},
    path::Path,
};

use nix::sys::{
    socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen as nix_listen, socket,
    },
    stat::{Mode, fchmod},
};

/// The maximum number of connections that are not yet accepted.
const BACKLOG: i32 = 1024;

/// Listens at a new file, which is created with mode 0600.
///
/// # Errors
/// `AddrInUse` if the file exists, `ENAMETOOLONG` for a path of over 107 bytes, or another errno.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // The file inherits the mode of the socket, minus the umask (unix_bind_bsd,
    // net/unix/af_unix.c).
    fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    nix_listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, net::UnixStream},
    };

    use super::*;
    use crate::errno::{Errno, errno};

    #[test]
    fn file_is_private_and_clients_can_connect() {
        let folder = std::env::temp_dir().join(format!("linerate-unix-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let long = folder.join("x".repeat(108 - folder.as_os_str().as_bytes().len()));
        let refused = errno(&listen(&long).unwrap_err());
        assert_eq!((refused, long.exists()), (Some(Errno::ENAMETOOLONG), false));
        fs::remove_dir_all(&folder).unwrap();
    }
}
