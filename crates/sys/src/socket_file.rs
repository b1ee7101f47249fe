//! The files of Unix sockets. Files left by exited processes are replaced, and ours are removed
//! when this process exits.
//!
//! ```text
//!   bind and listen at FOLDER/.linerate-PID-N -- link --> PATH -- unlink .linerate-PID-N
//! ```
//!
//! wg(8) unlinks a socket that refuses a connection, as a socket does between bind(2) and
//! listen(2). Therefore ours gets its name only after listen(2). Its temporary name does not end
//! in `.sock`.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{atomic_file, process::Helper, unix};

/// The prefix of temporary names.
const PREFIX: &str = ".linerate-";
/// The maximum number of attempts. A process of another pid namespace may use the same temporary
/// name, and another start may remove ours as a leftover.
const TRIES: u32 = 16;

/// The file of a socket, removed when this is dropped. It is identified by its inode, so that a
/// replacement by another process is not removed.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// The helper that removes it, if this process dropped its privileges.
    helper: Option<Arc<Helper>>,
}

impl SocketFile {
    /// Removes the file of a socket without a listening process.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens, `AlreadyExists` if the file is not a socket.
    pub fn remove_stale(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(old) if !old.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match UnixStream::connect(path).map_err(|error| (error.kind(), error)) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err((io::ErrorKind::ConnectionRefused, _)) => atomic_file::remove(path),
            Err((io::ErrorKind::NotFound, _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Listens at `path`, to which only this user may connect. A socket file left by an exited
    /// process is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there, `AlreadyExists` if the file is not a socket.
    pub fn listen(path: &Path) -> io::Result<(UnixListener, Self)> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        remove_leftovers(folder);
        Self::remove_stale(path)?;
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..TRIES {
            let new = folder.join(new_name());
            match unix::listen(&new).and_then(|listener| Ok((listener, move_to_path(&new, path)?)))
            {
                Ok((listener, inode)) => {
                    let file = Self { path: path.to_owned(), inode, helper: None };
                    return Ok((listener, file));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::AddrInUse | io::ErrorKind::NotFound => last = error,
                    // Another process was faster.
                    io::ErrorKind::AlreadyExists => return Err(io::ErrorKind::AddrInUse.into()),
                    _ => return Err(error),
                },
            }
        }
        Err(last)
    }

    /// Delegates the removal to `helper`. Its job must contain this file.
    pub fn delegate_removal(&mut self, helper: Arc<Helper>) {
        self.helper = Some(helper);
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = || fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        let removed = match &self.helper {
            Some(helper) => helper.remove_sockets(),
            None if ours() => fs::remove_file(&self.path),
            None => Ok(()),
        };
        if let Err(error) = removed {
            tracing::error!(%error, path = %self.path.display(), "the socket file was not removed");
        }
    }
}

fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Renames a socket to its path, which must not exist. Returns its inode.
fn move_to_path(new: &Path, path: &Path) -> io::Result<u64> {
    let linked =
        fs::symlink_metadata(new).and_then(|file| fs::hard_link(new, path).map(|()| file.ino()));
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %new.display(), "the socket's temporary name was not removed");
        }
        _ => {}
    }
    linked
}

/// Removes sockets with temporary names, left by processes that were killed during their start.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_temporary = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if is_temporary && let Err(error) = SocketFile::remove_stale(&entry.path()) {
            tracing::debug!(%error, path = %entry.path().display(), "a socket file was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, sync::atomic::AtomicBool, thread};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("linerate-socket-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn unused_sockets_are_replaced_and_other_files_are_not_removed() {
        let folder = Folder::new("stale");
        let path = folder.0.join("a.sock");
        let remove_stale = || SocketFile::remove_stale(&path).map_err(|error| error.kind());

        assert_eq!(remove_stale(), Ok(()));
        let (listener, file) = SocketFile::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(remove_stale(), Err(io::ErrorKind::AddrInUse));
        // The other file is created first, since the next file may reuse a freed inode.
        let other = folder.0.join("other");
        fs::write(&other, "another file").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(remove_stale(), Err(io::ErrorKind::AlreadyExists));
        drop(file);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        drop(listener);

        let (listener, file) = SocketFile::listen(&path).unwrap();
        drop(listener);
        drop(file);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!((remove_stale(), path.exists()), (Ok(()), false));
    }

    /// Connects to every file that ends in `.sock`, like wg(8). Returns whether a socket refused.
    fn any_refuses(folder: &Path) -> bool {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).any(|path| {
            let refused = io::ErrorKind::ConnectionRefused;
            UnixStream::connect(&path).is_err_and(|error| error.kind() == refused) && path.exists()
        })
    }

    #[test]
    fn socket_has_its_name_only_while_it_listens() {
        let folder = Folder::new("name");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut refused = false;
                while !done.load(Ordering::Relaxed) {
                    refused |= any_refuses(&folder.0);
                }
                refused
            });
            for start in 0..2000 {
                let name = format!("{start}.sock");
                let (listener, file) = SocketFile::listen(&folder.0.join(&name)).unwrap();
                assert_eq!(folder.names(), [name]);
                // The name is removed before the socket is closed.
                drop(file);
                drop(listener);
            }
            done.store(true, Ordering::Relaxed);
            assert!(!observer.join().unwrap());
        });
    }

    #[test]
    fn leftovers_of_crashed_starts_are_removed_but_not_used_sockets() {
        let folder = Folder::new("left");
        let path = folder.0.join("a.sock");
        let [dead, alive, file] =
            ["1-0", "2-0", "3-0"].map(|name| folder.0.join(format!("{PREFIX}{name}")));
        drop(UnixListener::bind(&dead).unwrap());
        let _alive = UnixListener::bind(&alive).unwrap();
        fs::write(&file, "not a socket").unwrap();
        let _ours = SocketFile::listen(&path).unwrap();
        assert_eq!(folder.names(), [".linerate-2-0", ".linerate-3-0", "a.sock"]);
    }

    #[test]
    fn one_of_many_concurrent_starts_gets_the_name() {
        let folder = Folder::new("many");
        let path = folder.0.join("a.sock");
        for _ in 0..50 {
            drop(UnixListener::bind(&path).unwrap());
            let started = thread::scope(|scope| {
                let start = || SocketFile::listen(&path).map_err(|error| error.kind());
                let starts = [(); 8].map(|()| scope.spawn(start));
                starts.map(|start| start.join().unwrap())
            });
            let (won, lost): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
            assert!(!won.is_empty());
            assert!(lost.iter().all(|lost| matches!(lost, Err(io::ErrorKind::AddrInUse))));
            drop(won);
            let _ = fs::remove_file(&path);
            assert_eq!(folder.names(), [""; 0]);
        }
    }
}
