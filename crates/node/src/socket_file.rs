//! The files of Unix sockets: what a process that is gone left behind makes room, and
//! ours go with us.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use sys::process::Janitor;

/// The file of a socket, removed when it is dropped. It is known by its inode: a file
/// that somebody else put in its place is not ours to remove.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Who removes it where we gave up the right to.
    janitor: Option<Arc<Janitor>>,
}

impl SocketFile {
    /// Removes the file of a socket where nobody listens.
    ///
    /// # Errors
    /// `AddrInUse` where somebody does, `AlreadyExists` where the file is no socket's.
    pub fn make_room(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(old) if !old.file_type().is_socket() => Err(io::ErrorKind::AlreadyExists.into()),
            Ok(_) if UnixStream::connect(path).is_ok() => Err(io::ErrorKind::AddrInUse.into()),
            Ok(_) => fs::remove_file(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The file of a socket that was bound just now. It is for its user only from here on.
    ///
    /// # Errors
    /// It is gone already, or was made by somebody else.
    pub fn adopt(path: &Path) -> io::Result<Self> {
        let inode = fs::symlink_metadata(path)?.ino();
        let file = Self { path: path.to_owned(), inode, janitor: None };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(file)
    }

    /// Leaves the removal to `janitor`.
    ///
    /// # Errors
    /// The janitor is gone.
    pub fn hand_over(&mut self, janitor: Arc<Janitor>) -> io::Result<()> {
        janitor.charge(&self.path)?;
        self.janitor = Some(janitor);
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.janitor.is_some() {
            return;
        }
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::error!(%error, path = %self.path.display(), "the socket stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_nobody_listens_at_makes_room_and_only_ours_is_removed() {
        let folder = std::env::temp_dir().join(format!("linerate-socket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.sock");
        let room = || SocketFile::make_room(&path).map_err(|error| error.kind());

        assert_eq!(room(), Ok(()));
        let listener = UnixListener::bind(&path).unwrap();
        let file = SocketFile::adopt(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(room(), Err(io::ErrorKind::AddrInUse));
        // The other is made first, since a freed inode may be had by the next file.
        let other = folder.join("other");
        fs::write(&other, "somebody else's").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(room(), Err(io::ErrorKind::AlreadyExists));
        drop(file);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        drop(listener);

        let listener = UnixListener::bind(&path).unwrap();
        let file = SocketFile::adopt(&path).unwrap();
        drop(listener);
        drop(file);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!((room(), path.exists()), (Ok(()), false));
        fs::remove_dir(&folder).unwrap();
    }
}
